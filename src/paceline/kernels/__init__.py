"""Kernels: products over packed weights, attention, look-ups and choices, compiled for a processor or a GPU."""
