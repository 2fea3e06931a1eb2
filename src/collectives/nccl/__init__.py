"""What NCCL needs to know outside a process group: which GPUs ranks share, and the network of emulated hosts."""
