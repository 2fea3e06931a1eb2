"""Training over collectives: data parallelism, model parallelism, communication behind computation, late workers."""
