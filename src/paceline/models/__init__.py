"""Language models: their contract (`base`), the backends, and the code that finds, checks and loads checkpoints."""
