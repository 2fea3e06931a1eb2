"""The course's grader: runs a submission in a sandbox, counts its messages outside it, and says which criteria it meets."""
