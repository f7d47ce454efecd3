"""Successors: the likeliest next tokens per token, recorded from all logits that are computed anyway."""
