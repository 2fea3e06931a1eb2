"""All sources of the ledger, and every entry judged."""

from __future__ import annotations

from functools import cache

from collectives_book.claims import apx, baidu, dailydose, lecture, nccl, subonis
from collectives_book.claims.ledger import Claim, Excluded, Judged, judge

# In the order of the page.
SOURCES = dailydose.SOURCE, baidu.SOURCE, apx.SOURCE, lecture.SOURCE, subonis.SOURCE, nccl.SOURCE


@cache
def verdicts(key: str) -> tuple[Judged | Excluded, ...]:
    """Every entry of the source with this key, judged."""
    (source,) = (each for each in SOURCES if each.key == key)
    return tuple(judge(entry) if isinstance(entry, Claim) else entry for entry in source.entries)
