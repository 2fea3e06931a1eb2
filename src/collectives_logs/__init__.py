"""Logs and dumps of a job: what they say, what is wrong, what to try next."""
