"""The table of forms of lines that say why a job fails (`forms.toml`), and the form that a text has."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib import resources
from itertools import chain
from typing import Any, NamedTuple

# How near to the cause a line is: it names one, follows from another process's, or only names a
# result.
CAUSE, CONSEQUENCE, RESULT = ("cause", "consequence", "result")

BLANKS = re.compile(r"\s+")
MAX_RANGE = 4096  # ranks


class Form(NamedTuple):
    """A form of a line; `follows` is true of every such line, whatever else the file says."""

    has: tuple[str, ...]  # literals without blanks, of which each such text has one
    text: re.Pattern[str]
    follows: str = ""
    next: str = ""
    kind: str = "failed"
    weight: str = CAUSE
    says: str = ""
    level: str = "WARN"  # the level of NCCL's lines that have it


TABLE: dict[str, list[dict[str, Any]]] = tomllib.loads(
    (resources.files(__package__) / "forms.toml").read_text(encoding="utf8")
)


def _form(row: dict[str, Any]) -> Form:
    """Return the form of a row, in whose pattern a space may be a line's end."""
    text = row.get("text") or "|".join(map(re.escape, row["has"])).replace(r"\ ", " ")
    pattern = re.compile(re.sub(r" (?![*?+{])", r"\\s*", text), re.DOTALL)
    literals = tuple(BLANKS.sub("", literal) for literal in row["has"])
    return Form(**row | {"has": literals, "text": pattern})


class Forms:
    """Some forms in their order, with one pattern that finds out fast whether a text can have any of them."""

    def __init__(self, forms: Iterable[Form]) -> None:
        self.forms = tuple(forms)
        literals = dict.fromkeys(chain.from_iterable(form.has for form in self.forms))
        self.any = re.compile("|".join(map(re.escape, literals)))


IN_NCCL, ANYWHERE = (Forms(map(_form, TABLE[part])) for part in ("nccl", "anywhere"))
IN_INFO = Forms(form for form in IN_NCCL.forms if form.level == "INFO")

# The literals of all forms that any line may have, as they are printed.
LITERALS = tuple(dict.fromkeys(chain.from_iterable(row["has"] for row in TABLE["anywhere"])))


def form_of(text: str, forms: Forms) -> Form | None:
    """Return the first of these forms that a text has, or None.

    >>> form_of("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", IN_NCCL).kind
    'failed'
    """
    squeezed = BLANKS.sub("", text)
    if forms.any.search(squeezed) is None:
        return None
    for form in forms.forms:
        if any(literal in squeezed for literal in form.has) and form.text.search(text):
            return form
    return None


def ranks_in(text: str, form: Form) -> tuple[frozenset[int], ...]:
    """Return the ranks that a text of a form names, for each list in it: numbers, ranges, or heads of Horovod's lists.

    >>> ready = "w_1 [ready ranks: 0, 3], w_2 [ready ranks: 2]"
    >>> [sorted(some) for some in ranks_in(ready, form_of(ready, ANYWHERE))]
    [[0, 3], [2]]
    """
    if "ranks" not in form.text.groupindex:
        return ()
    lists = (match["ranks"] or "" for match in form.text.finditer(text))
    return tuple(dict.fromkeys(frozenset(_numbers(given)) for given in lists if given))


def _numbers(given: str) -> Iterator[int]:
    numbers = r"(?:^|[\s\]])(\d{1,7}): ?\[" if "[" in given else r"(\d{1,7})(?:-(\d{1,7}))?"
    for found in re.finditer(numbers, given):
        first, last = int(found[1]), int(found[found.lastindex or 1])
        yield from range(first, min(last, first + MAX_RANGE) + 1)
