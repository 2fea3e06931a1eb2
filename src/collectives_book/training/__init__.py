"""The training engine of the pages: replicas, a step, clocks and checkpoints, shared by all that train."""
