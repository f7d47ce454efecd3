"""Kernels: products over packed weights, attention, lookups and choices, compiled for a processor or a GPU."""
