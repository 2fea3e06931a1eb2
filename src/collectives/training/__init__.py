"""Training over collectives: data parallelism, model parallelism, communication behind computation, late workers."""

from collectives.training.comm_hook import hook

__all__ = ["hook"]
