"""Successors: what is likeliest behind every token, read off all logits that are made anyway."""
