"""The notebook model-parallel: one model divided among ranks by tensors and as a pipeline, beside data parallelism."""
