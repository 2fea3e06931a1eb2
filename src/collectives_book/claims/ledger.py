"""What a claim is, how it is judged, and how a source is counted; no claim is written here.

A claim has what its source states and a function that finds the same value with this library. A rule compares the two,
and the comparison is the verdict: nobody writes one down. Where the claim fails as it stands, it may be judged a second
time under a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isclose
from typing import NamedTuple

HOLDS, HOLDS_IF, FAILS, EXCLUDED = "holds", "holds if", "does not hold", "excluded"
VERDICTS = HOLDS, HOLDS_IF, FAILS, EXCLUDED

Scalar = bool | int | float | str
Value = Scalar | tuple[Scalar, ...]


class Rule(NamedTuple):
    """How a value that was found is compared with the one that a source states."""

    words: str
    fits: Callable[[Scalar, Scalar], bool]  # stated, found


def _same(stated: Scalar, found: Scalar) -> bool:
    if isinstance(stated, str) or isinstance(found, str):
        return stated == found
    return isclose(stated, found, rel_tol=1e-9)


EQUAL = Rule("equal", _same)
LESS = Rule("less than the stated value", lambda stated, found: float(found) < float(stated))
AT_LEAST = Rule("at least the stated value", lambda stated, found: float(found) >= float(stated))
AT_MOST = Rule("at most the stated value", lambda stated, found: float(found) <= float(stated))


def within(share: float) -> Rule:
    """Equal but for a share of the stated value.

    >>> within(0.05).fits(400, 390), within(0.05).fits(400, 370)
    (True, False)
    """
    return Rule(
        f"within {share:.0%} of the stated value",
        lambda stated, found: abs(float(found) - float(stated)) <= share * abs(float(stated)) + 1e-12,
    )


class Given(NamedTuple):
    """A condition, and what is found where it is met."""

    condition: str
    find: Callable[[], Value]
    stated: Value | None = None  # where it differs, because there is one value for each case


class Claim(NamedTuple):
    """One claim: where it is, in our words, what it states, and how that is found here.

    ``at`` names the paragraphs (`places`), ``words`` are at most five of the source's, to find the sentence by.
    ``found`` says what was done; ``{}`` in it is the value. ``page`` is the document that shows it.
    """

    at: str
    words: str
    says: str
    stated: Value
    find: Callable[[], Value]
    rule: Rule
    found: str
    page: str
    given: Given | None = None
    note: str = ""
    form: Callable[[Value], str] | None = None


class Excluded(NamedTuple):
    """A sentence with a number that is not judged, and why."""

    at: str
    words: str
    says: str
    why: str


class Source(NamedTuple):
    """One source: its key in references.bib, and how many sentences of which paragraph have a number or a formula."""

    name: str
    key: str
    counted: str
    sentences: dict[str, int]
    entries: Sequence[Claim | Excluded]


class JudgedClaim(NamedTuple):
    """A claim with what was found and what follows from it."""

    claim: Claim
    found: Value
    under: Value | None
    verdict: str


def fits(rule: Rule, stated: Value, found: Value) -> bool:
    """Whether a value fits; of several, each one has to.

    >>> fits(EQUAL, (2, 6), (2, 6)), fits(EQUAL, (2, 6), (2, 7)), fits(EQUAL, (2, 6), (2,))
    (True, False, False)
    """
    left, right = _several(stated), _several(found)
    return len(left) == len(right) and all(rule.fits(one, other) for one, other in zip(left, right, strict=True))


def _several(value: Value) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def judge(claim: Claim) -> JudgedClaim:
    """Find the values and compare: as the claim stands, and where that fails under its condition."""
    found = claim.find()
    if fits(claim.rule, claim.stated, found):
        return JudgedClaim(claim, found, None, HOLDS)
    if claim.given is None:
        return JudgedClaim(claim, found, None, FAILS)
    under = claim.given.find()
    stated = claim.stated if claim.given.stated is None else claim.given.stated
    return JudgedClaim(claim, found, under, HOLDS_IF if fits(claim.rule, stated, under) else FAILS)


def places(at: str) -> Iterator[tuple[str, int]]:
    """Paragraph and number of the sentence among those counted there, from 1: "19.2" is the second of paragraph 19.

    >>> list(places("7 19.2"))
    [('7', 1), ('19', 2)]
    """
    for one in at.split():
        paragraph, _, nth = one.partition(".")
        yield paragraph, int(nth or 1)


def uncovered(source: Source) -> set[tuple[str, int]]:
    """Counted sentences without an entry, and entries for sentences that were not counted."""
    covered = {place for entry in source.entries for place in places(entry.at)}
    counted = {(paragraph, nth + 1) for paragraph, count in source.sentences.items() for nth in range(count)}
    return covered ^ counted


def count(entries: Sequence[JudgedClaim | Excluded]) -> dict[str, int]:
    """How many entries have which verdict."""
    found = [entry.verdict if isinstance(entry, JudgedClaim) else EXCLUDED for entry in entries]
    return {verdict: found.count(verdict) for verdict in VERDICTS}
