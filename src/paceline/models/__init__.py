"""Language models: one contract (`base`), the transformers adapter, and what finds, checks and loads checkpoints."""
