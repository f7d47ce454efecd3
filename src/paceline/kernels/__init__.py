"""Kernels: packed weights and the products over them."""
