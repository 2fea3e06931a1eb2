"""The notebook data-parallel: replicas joined by several back ends, a lost rank, batch sizes and learning rates."""
