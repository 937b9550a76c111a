"""The models the lab runs: decoder targets (GQA or MLA attention, dense or MoE MLP) and DFlash drafters."""
