"""What the experiments' parameters are made of: one strict model, and lists without duplicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from collectives.limits import MOST_RANKS, MOST_REPETITIONS
from collectives.machine import machine
from collectives.units import parse_bytes, parse_rate, parse_seconds


class Parameters(BaseModel):
    """The parameters of a notebook; every one has to be given, under its name and of its type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def distinct(values: Sequence[Any]) -> Any:
    """The values; ValueError where one of them is given twice, as its rows could not be told apart."""
    for nth, value in enumerate(values):
        if value in values[:nth]:
            raise ValueError(f"{value!r} is given twice")
    return values


def _parsed(parse: Callable[[str], float]) -> AfterValidator:
    """Text stays as it was typed; what cannot be parsed, or is zero, is refused."""

    def check(text: str) -> str:
        if not parse(text):
            raise ValueError(f"{text!r} is not above 0")
        return text

    return AfterValidator(check)


def _bytes(typed: str | int) -> int:
    if not (nbytes := parse_bytes(typed)):
        raise ValueError(f"{typed!r} is nothing to send; expected a byte or more")
    return nbytes


def _size(typed: str | int) -> str | int:
    _bytes(typed)
    return typed


def _sizes(typed: list[str | int]) -> list[str | int]:
    distinct([_bytes(size) for size in typed])
    return typed


def need_place(where: str, ranks: int) -> None:
    """Raise ValueError where no such place is known, or none that has room for so many ranks and links that work."""
    from collectives.launch import links, need_where

    need_where(where, ranks)
    if network := links(where, ranks):
        machine(network)


Size = Annotated[str | int, AfterValidator(_size)]
Sizes = Annotated[list[str | int], AfterValidator(_sizes)]
SomeSizes = Annotated[list[str | int], Field(min_length=1), AfterValidator(_sizes)]
Name = Annotated[str, Field(max_length=300)]
Names = Annotated[list[Name], AfterValidator(distinct)]
SomeNames = Annotated[list[Name], Field(min_length=1), AfterValidator(distinct)]
Latency = Annotated[str, _parsed(parse_seconds)]
Rate = Annotated[str, _parsed(parse_rate)]
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS)]
Repetitions = Annotated[int, Field(ge=1, le=MOST_REPETITIONS)]
