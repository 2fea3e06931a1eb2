"""Logs and dumps of jobs, read: what they say, what is wrong, and what to try next."""
