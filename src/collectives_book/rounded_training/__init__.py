"""Training with rounded sums: whether gradients added in few bits, or sent in few, change what a model learns."""
