"""Training: corpus, tokenizer, models and drafters. The only part of ddbench that writes weights."""
