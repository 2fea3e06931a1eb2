"""Schedules that are searched for: with few steps by a solver, and on meshes of any size by greedy matching."""
