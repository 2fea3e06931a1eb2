"""NCCL's log: its lines, the channels they describe, and what is found in them."""
