"""Compiled kernels for the CPU, written in Python: Numba, with LLVM vector code for the inner products."""
