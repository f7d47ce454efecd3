"""Policies: the only place that decides how much to draft; one contract (`base`), one file per policy."""
