"""Kernels: compiled functions of three addresses and a count, for one dtype or format at a time."""
