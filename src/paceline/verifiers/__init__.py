"""Verifiers: one contract (`base`), one file per verifier."""
