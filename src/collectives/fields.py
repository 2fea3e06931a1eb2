"""Fields of pydantic models for quantities as people type them: sizes as 64K, times as 5us, rates as 25GB/s.

A field holds the number: bytes, seconds, bytes per second. In JSON, times and rates are typed again.
"""

from typing import Annotated, Any

from pydantic import (
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
    parse_bytes,
    parse_rate,
    parse_seconds,
    typed_rate,
    typed_seconds,
)

FILE = "file"  # the context in which the contents of a file are validated


class Model(BaseModel):
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
Seconds = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    _typed(parse_seconds, "5us"),
    PlainSerializer(typed_seconds, when_used="json-unless-none"),
    _written(TYPED_SECONDS, {"const": 0}),
]
Rate = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    _typed(parse_rate, "25GB/s"),
    PlainSerializer(typed_rate, when_used="json-unless-none"),
    WithJsonSchema({"type": "string", "pattern": TYPED_RATE}, mode="validation"),
]
Bytes = Annotated[int, Field(ge=0), _typed(parse_bytes), _written(TYPED_BYTES, {"type": "integer", "minimum": 0})]
