"""The part of pydantic that machines and their links use, for a browser: no compiled core of pydantic runs there.

A model checks and converts its fields as pydantic does for the types of `collectives.machine`: numbers, text, other
models, tuples, lists and dicts of these, or None. Messages differ; tests/book/test_python_in_page.py compares values.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, NamedTuple, Union, get_args, get_origin, get_type_hints

LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": ("greater than or equal to", lambda value, limit: value >= limit),
    "gt": ("greater than", lambda value, limit: value > limit),
    "le": ("less than or equal to", lambda value, limit: value <= limit),
}


class ValidationError(ValueError):
    """Values that a model refuses: `errors` lists where, what, and the value."""

    def __init__(self, found: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, it['loc']))}: {it['msg']}" for it in found))
        self._found = found

    def errors(self) -> list[dict[str, Any]]:
        """Return what was found, as pydantic does."""
        return self._found


class ValidationInfo(NamedTuple):
    """Hold the context that a validator gets beside the value."""

    context: Any = None


class BeforeValidator(NamedTuple):
    """A function that gets the value before its type is checked, and what it is validated for."""

    function: Callable[..., Any]


class AfterValidator(NamedTuple):
    """A function that gets the value once its type is right."""

    function: Callable[..., Any]


class Field:
    """The limits of a field, and its default if it has one."""

    def __init__(self, **given: Any) -> None:
        self.given = given


def model_validator(*, mode: str) -> Callable[[Any], Any]:
    """Mark a method that looks at a model as a whole, before or after its fields."""

    def marked(method: Any) -> Any:
        getattr(method, "__func__", method).validates = mode
        return method

    return marked


def ConfigDict(**options: Any) -> dict[str, Any]:  # noqa: N802
    """Return the options: the models here are frozen and refuse unknown fields themselves."""
    return options


def PlainSerializer(*_: Any, **__: Any) -> None:  # noqa: N802
    """Return nothing: nothing is written as JSON here."""


def WithJsonSchema(*_: Any, **__: Any) -> None:  # noqa: N802
    """Return nothing: nothing is written as JSON here."""


class BaseModel:
    """A record whose fields are checked when it is made."""

    model_fields: ClassVar[dict[str, None]] = {}

    def __init_subclass__(cls) -> None:
        named = [name for base in reversed(cls.__mro__) for name in get_annotations(base)]
        cls.model_fields = dict.fromkeys(name for name in named if not name.startswith("model_"))

    def __init__(self, **given: Any) -> None:
        self._fill(given, None)

    @classmethod
    def model_validate(cls, given: Any, context: Any = None) -> Any:
        """Return the model of these values. Raises ValidationError."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, dict):
            raise ValueError(f"Input should be a valid dictionary or instance of {cls.__name__}")
        made = cls.__new__(cls)
        made._fill(given, context)
        return made

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Any:
        """Return a copy in which some fields have other values, unchecked."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__, **(update or {}))
        return made

    def model_dump(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {name: plain(value) for name, value in self.__dict__.items()}

    def _fill(self, given: dict[str, Any], context: Any) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        try:
            for method in self._validators("before"):
                given = method(given)
            for name in self.model_fields:
                if name in given:
                    self.__dict__[name] = checked(hints[name], given[name], context, (name,))
                else:
                    self.__dict__[name] = self._default(name)
            for method in self._validators("after"):
                method()
        except ValidationError:
            raise
        except ValueError as error:
            raise refused((), f"Value error, {error}", given) from None

    def _validators(self, mode: str) -> Iterator[Callable[..., Any]]:
        for base in reversed(type(self).__mro__):
            for name, value in vars(base).items():
                if getattr(getattr(value, "__func__", value), "validates", "") == mode:
                    yield getattr(self, name)

    def _default(self, name: str) -> Any:
        if not hasattr(type(self), name):
            raise refused((name,), "Field required", None)
        value = getattr(type(self), name)
        return value.given["default"] if isinstance(value, Field) else value

    def __setattr__(self, name: str, value: Any) -> None:
        raise refused((name,), "Instance is frozen", value)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"

    __str__ = __repr__


def plain(value: Any) -> Any:
    """Return a value in which models are dicts."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def refused(where: tuple[Any, ...], message: str, value: Any) -> ValidationError:
    """Return the error for one value."""
    return ValidationError([{"loc": where, "msg": message, "type": "value", "input": value}])


def checked(hint: Any, value: Any, context: Any, where: tuple[Any, ...]) -> Any:
    """Return the value as a type has it. Raises ValidationError with the place where it cannot be."""
    try:
        return converted(hint, value, context, where)
    except ValidationError as error:
        if error.errors()[0]["loc"][: len(where)] == where:
            raise
        inner = [found | {"loc": (*where, *found["loc"])} for found in error.errors()]
        raise ValidationError(inner) from None
    except ValueError as error:
        text = str(error)
        message = text if text.startswith("Input should") else f"Value error, {text}"
        raise refused(where, message, value) from None


def converted(hint: Any, value: Any, context: Any, where: tuple[Any, ...]) -> Any:
    """Return the value as a type has it, or raise ValueError."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        return annotated(inner[0], inner[1:], value, context, where)
    if origin in (Union, types.UnionType):  # X | None
        kinds = [kind for kind in inner if kind is not types.NoneType]
        return None if value is None else converted(kinds[0], value, context, where)
    if origin is tuple:
        return sequence(inner, value, context, where)
    if origin is list:
        return list(sequence((*inner, ...), value, context, where))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError("Input should be a valid dictionary")
        return {
            checked(inner[0], key, context, (*where, key, "[key]")): checked(
                inner[1], each, context, (*where, key)
            )
            for key, each in value.items()
        }
    if issubclass(hint, BaseModel):
        return hint.model_validate(value, context)
    return simple(hint, value)


def annotated(
    hint: Any, marks: tuple[Any, ...], value: Any, context: Any, where: tuple[Any, ...]
) -> Any:
    """Return the value as a type with limits and validators has it."""
    limits = dict[str, Any]()
    for mark in marks:
        limits |= mark.given if isinstance(mark, Field) else {}
    for mark in marks:
        if isinstance(mark, BeforeValidator):
            value = mark.function(value, ValidationInfo(context))
    if limits.get("strict") and type(value) is not hint:
        raise ValueError(f"Input should be a valid {'integer' if hint is int else hint.__name__}")
    value = converted(hint, value, context, where)
    for name, limit in limits.items():
        if name in LIMITS and not LIMITS[name][1](value, limit):
            raise ValueError(f"Input should be {LIMITS[name][0]} {limit}")
    if limits.get("allow_inf_nan") is False and not abs(value) < float("inf"):
        raise ValueError("Input should be a finite number")
    for mark in marks:
        if isinstance(mark, AfterValidator):
            value = mark.function(value)
    return value


def sequence(
    inner: tuple[Any, ...], value: Any, context: Any, where: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Return a list or tuple as a tuple of these types."""
    if not isinstance(value, list | tuple):
        raise ValueError("Input should be a valid tuple")
    kinds = inner[:1] * len(value) if inner[-1] is ... else inner
    if len(kinds) != len(value):
        raise ValueError(f"Input should have {len(kinds)} items, not {len(value)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(checked(kind, each, context, (*where, nth)) for nth, (kind, each) in pairs)


def simple(hint: Any, value: Any) -> Any:
    """Return a number, a truth value or text."""
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint in (int, float) and isinstance(value, str):
        return hint(value)
    names = {int: "integer", float: "number", str: "string", bool: "boolean"}
    raise ValueError(f"Input should be a valid {names.get(hint, hint)}")
