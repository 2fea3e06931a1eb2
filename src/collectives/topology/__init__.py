"""Machines whose links are known one by one: the best possible time, schedules that reach it, and their synthesis."""
