"""Files that users write: YAML with plain values only, and fields of pydantic models for typed quantities.

YAML is limited in size and depth, so that any file is read or refused at once. A field is typed as 64K, 5us or 25GB/s,
and holds the number: bytes, seconds, bytes per second. In JSON, times and rates are typed again.
"""

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from collectives.errors import unknown
from collectives.units import (
    TYPED_BYTES,
    TYPED_RATE,
    TYPED_SECONDS,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)
from collectives.wire import current_name

MOST_BYTES = 1 << 16
MOST_DEPTH = 16
# Types of a plain word, besides text. No dates: 2020-01-01 is text, as in JSON.
PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float")}

FILE = "file"  # the context in which the contents of a file are validated


class StrictModel(BaseModel):
    """A model whose values do not change, and that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and (extra := [key for key in given if key not in cls.model_fields]):
            raise ValueError(unknown("field", str(extra[0]), cls.model_fields))
        return given


def _typed(parse: Any, unit: str = "") -> BeforeValidator:
    """Parse text; in a file, a bare number other than 0 without its unit is an error."""

    def validated(value: Any, given: ValidationInfo) -> Any:
        if isinstance(value, str):
            return parse(value)
        if unit and given.context == FILE and value != 0:
            raise ValueError(f"expected a number with its unit, such as {unit}")
        return value

    return BeforeValidator(validated)


def _written(pattern: str, number: dict[str, Any]) -> WithJsonSchema:
    """How a file has it: as typed text, or as this number."""
    return WithJsonSchema({"anyOf": [{"type": "string", "pattern": pattern}, number]}, mode="validation")


Count = Annotated[int, Field(ge=1, strict=True)]
AlgorithmName = Annotated[str, AfterValidator(current_name)]
Seconds = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    _typed(parse_seconds, "5us"),
    PlainSerializer(format_seconds, when_used="json-unless-none"),
    _written(TYPED_SECONDS, {"const": 0}),
]
Rate = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    _typed(parse_rate, "25GB/s"),
    PlainSerializer(format_rate, when_used="json-unless-none"),
    WithJsonSchema({"type": "string", "pattern": TYPED_RATE}, mode="validation"),
]
Bytes = Annotated[int, Field(ge=0), _typed(parse_bytes), _written(TYPED_BYTES, {"type": "integer", "minimum": 0})]


def read_yaml(path: Path) -> Any:
    """The value in a file. Raises ValueError, with the file's name, if it cannot be read or `parse_yaml` refuses it."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    return parse_yaml(data, str(path))


def parse_yaml(text: str | bytes, name: str) -> Any:
    """The value of a YAML text. Raises ValueError, one line that begins with ``name``, for invalid YAML.

    It also refuses more than 64 KiB, more than 16 levels, aliases and tags: with aliases a few lines can expand to more
    than memory holds.

    >>> parse_yaml("{ranks: 4, sizes: [4, 64K], day: 2020-01-01}", "an example")
    {'ranks': 4, 'sizes': [4, '64K'], 'day': '2020-01-01'}
    >>> parse_yaml("[&a [1], *a]", "an example")
    Traceback (most recent call last):
        ...
    ValueError: an example: line 1, column 10: got an alias, expected the value itself
    """
    data = text.encode("utf8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MOST_BYTES:
        raise ValueError(f"{name}: got more than {MOST_BYTES >> 10} KiB of YAML, expected less")
    try:
        return yaml.load(data.decode("utf-8-sig"), _Loader)
    except _RefusedError as error:
        raise ValueError(f"{name}: {_where(error)}") from None
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"{name}: invalid YAML: {_where(error)}") from None
    except (yaml.YAMLError, ValueError) as error:  # control characters, bytes that are not UTF-8, thousands of digits
        raise ValueError(f"{name}: invalid YAML: {_line(error)}") from None


class _RefusedError(yaml.MarkedYAMLError):
    """Valid YAML that `parse_yaml` refuses."""


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        _need(not isinstance(event, yaml.AliasEvent), event, "got an alias, expected the value itself")
        _need(getattr(event, "tag", None) is None, event, "got a tag, expected a plain value")
        _need(self.depth < MOST_DEPTH, event, f"got more than {MOST_DEPTH} levels, expected fewer")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in some if tag in PLAIN]
    for first, some in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _need(holds: bool, event: Any, otherwise: str) -> None:
    if not holds:
        raise _RefusedError(problem=otherwise, problem_mark=event.start_mark)


def _where(error: yaml.MarkedYAMLError) -> str:
    mark, problem = error.problem_mark, _line(error.problem or error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


def _line(what: object) -> str:
    return " ".join(str(what).split())[:200]
