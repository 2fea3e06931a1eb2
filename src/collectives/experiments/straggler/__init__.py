"""The notebook straggler: one host whose link is slower than the others'."""
