"""The claims ledger: what the book's sources state in numbers and formulas, and what this library finds.

``claims.yaml`` has the claims. Each names a check (`collectives_book.claim_checks`) and a rule that compares what the
check finds with what the source states. The comparison is the verdict: nobody writes one down. Where a claim fails as
it stands, it may be judged a second time under a condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from math import isclose
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import yaml
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from collectives.config import StrictModel
from collectives.errors import explain
from collectives_book.claim_checks import Found, prepare

FILE = Path(__file__).with_suffix(".yaml")

Verdict = Literal["holds", "holds if", "does not hold", "excluded"]
# Each with its name in a table.
VERDICTS: dict[Verdict, str] = {"holds": "holds", "holds if": "if", "does not hold": "not", "excluded": "out"}

Scalar = bool | int | float | str
Values = tuple[Scalar, ...]


def values(found: Any) -> Values:
    """Return one or several values as plain ones, one after the other.

    >>> values((True, np.array([1.5, 2.0])))
    (True, 1.5, 2.0)
    """
    if isinstance(found, list | tuple | np.ndarray):
        return tuple(one for each in found for one in values(each))
    return (found.item() if isinstance(found, np.generic) else found,)


Rule = Literal["equal", "less than", "at least", "at most", "within 1%", "within 5%", "within 10%", "within 15%"]


def fits(rule: Rule, stated: Values, found: Values) -> bool:
    """Return True if all values fit; one that is stated is compared with each that is found.

    >>> fits("equal", (2, 6), (2, 6)), fits("equal", (2,), (2, 2)), fits("equal", (2, 6), (2, 6, 6))
    (True, True, False)
    >>> fits("within 5%", (400,), (390,)), fits("within 5%", (400,), (370,))
    (True, False)
    """
    each = stated * len(found) if len(stated) == 1 else stated
    return bool(found) and len(each) == len(found) and all(map(partial(_fits, rule), each, found))


def _fits(rule: Rule, stated: Any, found: Any) -> bool:
    match rule:
        case "equal":
            text = isinstance(stated, str) or isinstance(found, str)
            return bool(stated == found if text else isclose(stated, found, rel_tol=1e-9))
        case "less than":
            return bool(found < stated)
        case "at least":
            return bool(found >= stated)
        case "at most":
            return bool(found <= stated)
    share = int(rule.removeprefix("within ").removesuffix("%")) / 100
    return bool(abs(found - stated) <= share * abs(stated) + 1e-12)


Check = Annotated[Found, BeforeValidator(prepare)]
Stated = Annotated[Values, BeforeValidator(values), Field(min_length=1)]
Words = Annotated[str, Field(pattern=r"^\S+( \S+){0,4}$")]  # at most five are copied


def places(at: str) -> Iterator[tuple[str, int]]:
    """Yield paragraph and number of the sentence among those counted there: "19.2" is the second of paragraph 19.

    >>> list(places("7 19.2"))
    [('7', 1), ('19', 2)]
    """
    for one in at.split():
        paragraph, _, nth = one.partition(".")
        yield paragraph, int(nth or 1)


class Given(StrictModel):
    """A condition, and what is found where it is met; ``states`` only where it differs from the claim's."""

    condition: str
    check: Check
    states: Stated | None = None


class Excluded(StrictModel):
    """A sentence with a number that is not judged, and why."""

    at: str
    words: Words
    says: str
    why: str = Field(min_length=1)


class Claim(StrictModel):
    """One claim: where it is, in our words, what it states, and how that is found here.

    ``at`` names the paragraphs (`places`), ``words`` are the source's, to find the sentence by.
    ``found`` says what was done; ``{}`` stands for the value. ``page`` is the document that shows it.
    """

    at: str
    words: Words
    says: str
    check: Check
    states: Stated
    rule: Rule = "equal"
    found: Annotated[str, Field(pattern=r"\{\}")]
    page: str
    given: Given | None = None
    note: str = ""


def _kind(entry: Any) -> str:
    return "excluded" if isinstance(entry, Excluded) or (isinstance(entry, dict) and "why" in entry) else "claim"


Entry = Annotated[Annotated[Claim, Tag("claim")] | Annotated[Excluded, Tag("excluded")], Discriminator(_kind)]


class Source(StrictModel):
    """One source: its key in references.bib, and how many sentences of which paragraph have a number or a formula.

    Each of them has an entry, and no other sentence has one.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    name: str
    key: str
    counted: str
    sentences: dict[str, int]
    entries: tuple[Entry, ...]

    @model_validator(mode="after")
    def _covered(self) -> Source:
        covered = {place for entry in self.entries for place in places(entry.at)}
        counted = {(paragraph, nth + 1) for paragraph, count in self.sentences.items() for nth in range(count)}
        if missing := sorted(counted - covered):
            raise ValueError(f"sentences of {self.key} without an entry: got {missing}, expected none")
        if surplus := sorted(covered - counted):
            raise ValueError(f"entries of {self.key} for sentences that were not counted: got {surplus}, expected none")
        return self


def read(path: Path = FILE) -> tuple[Source, ...]:
    """Return the sources of a file; raises ValueError, with where it is, for anything that cannot be judged."""
    given = yaml.safe_load(path.read_text(encoding="utf8"))
    try:
        return TypeAdapter(tuple[Source, ...]).validate_python(given)
    except ValidationError as error:
        raise ValueError(f"{path.name}: {explain(error)}") from None


@cache
def sources() -> dict[str, Source]:
    """Return the ledger's sources by their keys, in the order of the file."""
    return {each.key: each for each in read()}


class Judged(NamedTuple):
    """An entry with what was found, also under its condition, and what follows from it."""

    entry: Claim | Excluded
    verdict: Verdict
    found: Values = ()
    under: Values = ()


def judge(entry: Claim | Excluded) -> Judged:
    """Find the values and compare: as the claim stands, and where that fails under its condition."""
    if isinstance(entry, Excluded):
        return Judged(entry, "excluded")
    found = values(entry.check())
    if fits(entry.rule, entry.states, found):
        return Judged(entry, "holds", found)
    if entry.given is None:
        return Judged(entry, "does not hold", found)
    under = values(entry.given.check())
    met = fits(entry.rule, entry.given.states or entry.states, under)
    return Judged(entry, "holds if" if met else "does not hold", found, under)


@cache
def judged(key: str) -> tuple[Judged, ...]:
    """Return every entry of the source with this key, judged."""
    return tuple(map(judge, sources()[key].entries))


def counts() -> dict[str, dict[str, int]]:
    """Return for each source how many sentences were counted, and how many entries have which verdict."""
    found = {source.name: [each.verdict for each in judged(key)] for key, source in sources().items()}
    return {
        source.name: {"sentences": sum(source.sentences.values())}
        | {short: found[source.name].count(verdict) for verdict, short in VERDICTS.items()}
        for source in sources().values()
    }
