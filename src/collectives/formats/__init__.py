"""Formats of other people: MSCCL XML, read, proved and written; GOAL and the file of NCCL's tuner, written."""
