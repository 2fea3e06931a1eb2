"""What the verbs share: the error for wrong input, and options, also those that are fields of a pydantic model."""

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from collectives import units

TIMEOUT = 600.0


class UsageError(Exception):
    """Something the user typed; the message says what was wrong and what is allowed."""


@contextmanager
def wrong_input() -> Iterator[None]:
    """In the block a ValueError is about what the user typed."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option ``--json``."""
    parser.add_argument("--json", action="store_true", help="one JSON object per row on standard output")


def add_field(parser: argparse.ArgumentParser, flag: str, field: dict[str, Any], text: str, **more: Any) -> None:
    """An option that is a field of a model, given by its JSON schema: type, limits and default are the model's."""
    one = next((kind for kind in field.get("anyOf", ()) if kind["type"] != "null"), field)
    item, default = one.get("items", one), field["default"]
    if item["type"] == "boolean":
        parser.add_argument(flag, default=default, help=text, action=argparse.BooleanOptionalAction, **more)
        return
    if item["type"] == "integer":
        more.setdefault("type", whole(item.get("maximum"), item["minimum"]))
    elif item["type"] == "number":
        more.setdefault("type", seconds)
    if "items" in one:
        more.setdefault("nargs", "+")
    elif "nargs" in more:  # the verb takes several values, one for each model
        default = [default]
    shown = " ".join(map(str, default)) if isinstance(default, list) else default
    text += "" if default is None else f" (default {shown})"
    parser.add_argument(flag, default=default, help=text, metavar=flag.strip("-").upper(), **more)


def whole(most: int | None = None, least: int = 1) -> Callable[[str], int]:
    """What parses a whole number within limits.

    >>> whole(100)("12")
    12
    """
    limit = "" if most is None else f" to {most:,}"

    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > 40 or not least <= int(text) <= (most or math.inf):
            raise argparse.ArgumentTypeError(f"got {text[:40]!r}, expected a whole number from {least}{limit}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """A time limit.

    >>> seconds("1.5")
    1.5
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= units.MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, expected seconds: above 0, at most {units.MOST_SECONDS}")
    return number


def size(text: str) -> int:
    """The size of a buffer, as it is typed.

    >>> size("64K")
    65536
    """
    from collectives.units import format_bytes, parse_bytes

    try:
        number = parse_bytes(text[:40])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if number > units.MOST_BYTES:
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, expected at most {format_bytes(units.MOST_BYTES)}")
    return number
