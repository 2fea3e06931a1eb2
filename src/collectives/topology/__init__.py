"""Machines whose links are known one by one: the best possible time, and trees that reach it."""
