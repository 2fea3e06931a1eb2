"""Reports of NCCL's RAS subsystem: read, and what follows."""
