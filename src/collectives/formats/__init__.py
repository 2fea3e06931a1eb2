"""Formats of others: MSCCL XML, read, proved, and as schedules; TE-CCL, read.

GOAL and NCCL's tuner, written.
"""
