"""Kernels: matrix products, attention, lookups and token choices, compiled for a CPU or a GPU."""
