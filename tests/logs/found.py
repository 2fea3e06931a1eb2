"""Findings by their kinds."""

from collections.abc import Callable, Iterable
from typing import Any

from collectives_logs.finding import Finding


def finders(
    findings_in: Callable[[Any], Iterable[Finding]],
) -> tuple[Callable[[Any], list[str]], Callable[[Any, str], Finding]]:
    """Return what gives all kinds of findings in something, and what gives the only one of a kind."""

    def only(given: Any, kind: str) -> Finding:
        (one,) = [one for one in findings_in(given) if one.kind == kind]
        return one

    return lambda given: [one.kind for one in findings_in(given)], only
