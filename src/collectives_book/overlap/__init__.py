"""The notebooks overlap and weak-scaling: how much of the gradients' all-reduces a backward pass hides."""
