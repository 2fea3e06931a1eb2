"""Processes that we start: watched until they end, and ended with whatever started them."""
