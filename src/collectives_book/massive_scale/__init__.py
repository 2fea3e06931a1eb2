"""The notebook massive-scale: simulated all-reduces on up to 24,576 GPUs, beside published measurements."""
