"""Modules that the site packs beside the library for the Python in a page; the build uses `imports`, too."""
