"""The speculative-decoding engine: requests to tokens, every stage a replaceable part."""
