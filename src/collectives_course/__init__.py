"""The course's grader: runs submissions in sandboxes, and counts their messages outside."""
