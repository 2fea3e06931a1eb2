"""What the command line is made of: its arguments (`parser`), how it ends (`ending`), and its longer verbs."""


class UsageError(Exception):
    """Something the user typed; the message says what was wrong and what is allowed."""
