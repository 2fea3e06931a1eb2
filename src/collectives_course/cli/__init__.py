"""The verbs that the course adds to the command line."""
