"""Files that users write: YAML with plain values only, and fields of pydantic models for typed quantities.

YAML is limited in size and has no aliases, so that any file is read or refused at once. A field is
typed as 64K, 5us or 25GB/s, and holds the number: bytes, seconds, bytes per second. In JSON, times
and rates are typed again.
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

from collectives.errors import short, unknown
from collectives.renamed import current_name
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

MAX_BYTES = 1 << 16

FILE = "file"  # the context in which the contents of a file are validated


class StrictModel(BaseModel):
    """A model whose values do not change, and that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and (
            extra := [key for key in given if key not in cls.model_fields]
        ):
            raise ValueError(unknown("field", str(extra[0]), cls.model_fields))
        return given


def _typed(parse: Any, unit: str = "") -> BeforeValidator:
    """Return the validator that parses text.

    In a file, it refuses a number other than 0 without its unit.
    """

    def validated(value: Any, given: ValidationInfo) -> Any:
        if isinstance(value, str):
            return parse(value)
        if unit and given.context == FILE and value != 0:
            raise ValueError(f"expected a number with its unit, such as {unit}")
        return value

    return BeforeValidator(validated)


def _written(pattern: str, number: dict[str, Any]) -> WithJsonSchema:
    """Return the JSON schema of a quantity in a file: typed text, or this number."""
    return WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": pattern}, number]}, mode="validation"
    )


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
Bytes = Annotated[
    int, Field(ge=0), _typed(parse_bytes), _written(TYPED_BYTES, {"type": "integer", "minimum": 0})
]


class _Loader(yaml.SafeLoader):
    """The safe loader without aliases, dates and keys that come twice.

    A few lines with aliases expand to more than memory holds, and 2020-01-01 is text, as in JSON.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="got an alias, expected the value itself", problem_mark=mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value]
        names = [key.value for key in keys]
        for nth, name in enumerate(names):
            if name in names[:nth]:
                problem = f"got the key {short(name)} twice, expected it once"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=keys[nth].start_mark)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0].endswith((":null", ":bool", ":int", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(path: Path) -> Any:
    """Return the value in a file.

    Raises ValueError, with the file's name, if it is not readable or not valid.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    return parse_yaml(data, str(path))


def parse_yaml(text: str | bytes, name: str) -> Any:
    """Return the value of a YAML text.

    Raises ValueError, one line that begins with ``name``, for invalid YAML.

    It also refuses more than 64 KiB, aliases, and a key that comes twice, of which only the last
    value would count.

    >>> parse_yaml("{ranks: 4, sizes: [4, 64K], day: 2020-01-01}", "an example")
    {'ranks': 4, 'sizes': [4, '64K'], 'day': '2020-01-01'}
    >>> parse_yaml("[&a [1], *a]", "an example")
    Traceback (most recent call last):
        ...
    ValueError: an example: invalid YAML: line 1, column 10: got an alias, expected the value itself
    """
    data = text.encode("utf8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_BYTES:
        raise ValueError(f"{name}: got more than {MAX_BYTES >> 10} KiB of YAML, expected less")
    try:
        return yaml.load(data.decode("utf-8-sig"), _Loader)
    except RecursionError:
        raise ValueError(f"{name}: invalid YAML: got too many levels, expected fewer") from None
    # Control characters, bytes that are not UTF-8, thousands of digits.
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = (
            getattr(error, "problem_mark", None),
            getattr(error, "problem", None) or error,
        )
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(
            f"{name}: invalid YAML: {at}{' '.join(str(problem).split())[:200]}"
        ) from None
