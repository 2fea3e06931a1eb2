"""Wrong rings."""

from assignments.wrong import Wrong

WRONG = [
    Wrong("drops the remainder", {"any-length": "failed"}, {"min(chunk, larger)": "0"}, is_quick=True),
    Wrong("averages twice", {"mean": "failed"}, {"buffer /= comm.size": "buffer /= comm.size**2"}),
]
