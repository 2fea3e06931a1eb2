"""The forms of lines that say why a job fails: `forms.toml` has what follows from each, and what to try."""

import re
import tomllib
from importlib import resources
from typing import NamedTuple

# How near to the cause a line is: it names one, follows from another process's, or only names a result.
CAUSE, CONSEQUENCE, RESULT = WEIGHTS = ("cause", "consequence", "result")


class Form(NamedTuple):
    """A form of a line; `follows` is true of every such line, whatever else the file says."""

    text: re.Pattern[str]
    follows: str = ""
    next: str = ""
    kind: str = "failed"
    weight: str = CAUSE


TABLE = tomllib.loads((resources.files(__package__) / "forms.toml").read_text(encoding="utf8"))
WORDS: tuple[str, ...] = tuple(TABLE["words"])  # of which any line that is read has one


def _forms(rows: list[dict[str, str]]) -> tuple[Form, ...]:
    """Return the forms of a part of the table; a space in a pattern may be a line's end."""
    patterns = (re.sub(r" (?![*?+{])", r"\\s*", row["text"]) for row in rows)
    return tuple(
        Form(**row | {"text": re.compile(text, re.DOTALL)})  # type: ignore[arg-type]
        for text, row in zip(patterns, rows, strict=True)
    )


IN_NCCL, ANYWHERE, BESIDE = (_forms(TABLE[name]) for name in ("nccl", "anywhere", "beside"))


def form_of(text: str, forms: tuple[Form, ...] = IN_NCCL + ANYWHERE) -> Form | None:
    """Return the first form that a text has, or None.

    >>> form_of("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000").kind, form_of("hello")
    ('failed', None)
    """
    return next((form for form in forms if form.text.search(text)), None)
