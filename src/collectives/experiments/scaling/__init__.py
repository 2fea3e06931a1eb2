"""The notebook scaling: all-reduces on more and more emulated hosts."""
