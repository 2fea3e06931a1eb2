"""Processes that we start: supervised until they end, and ended when their parent ends."""
