"""Interchange: programs in other people's formats, read, and proved or refuted."""
