"""Storage of keys and values: one contract (`base`), one file per kind of store."""
