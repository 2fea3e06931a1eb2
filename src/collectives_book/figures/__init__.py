"""One kit for the figures of pages and notebooks, and the pictures that several of them share."""
