"""The notebook scaling: all-reduces on 2, 4, 8 … emulated hosts."""
