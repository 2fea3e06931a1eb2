"""The notebook overlap: how much of the gradients' all-reduces a backward pass hides, by the size of buckets."""
