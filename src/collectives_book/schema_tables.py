"""A JSON Schema's fields as a Markdown table: what the book's reference shows, and nothing that the schema lacks."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

Schema = Mapping[str, Any]

# A typed quantity is shown by the first of these that its pattern accepts.
TYPED = ("5ms", "25GB/s", "64K")
WORDS = {"array": "list", "integer": "whole number", "object": "object", "string": "text"}
WIDEST = 1 << 53  # a limit above that says nothing to a reader


def fields(schema: Schema, whole: Schema | None = None) -> str:
    """The properties of an object's schema, a row each; ``whole`` has the ``$defs`` that it refers to.

    >>> print(fields({"properties": {"p": {"type": "integer", "minimum": 1}}, "required": ["p"]}))
    | field | takes | needed |
    |---|---|---|
    | `p` | whole number, at least 1 | yes |
    """
    defs, needed = (whole or schema).get("$defs", {}), schema.get("required", ())
    rows = [
        [f"`{name}`", takes(field, defs), "yes" if name in needed else default(field), field.get("description", "")]
        for name, field in schema["properties"].items()
    ]
    columns = 4 if any(row[3] for row in rows) else 3
    return table(["field", "takes", "needed", "meaning"][:columns], (row[:columns] for row in rows))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; a bar in a cell is written so that it does not end the cell."""
    head = list(head)
    cells = [head, ["---"] * len(head), *rows]
    lines = ["|" + "|".join(f" {each.replace('|', chr(92) + '|')} " for each in row) + "|" for row in cells]
    return "\n".join([lines[0], lines[1].replace(" ", ""), *lines[2:]])


def takes(field: Schema, defs: Schema) -> str:
    """The values that a field takes, in words.

    >>> takes({"anyOf": [{"type": "array", "items": {"enum": ["a", "b"]}}, {"type": "null"}]}, {})
    'list of `a`, `b`; or null'
    >>> takes({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 1024}}, {})
    'list of whole numbers from 1 to 1,024'
    """
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"*{name}*" if "properties" in defs[name] else takes(defs[name], defs)
    if "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        return ", ".join("null" if each is None else f"`{each}`" for each in values)
    several = field.get("anyOf") or (field["type"] if isinstance(field.get("type"), list) else ())
    if several:
        kinds = (each if isinstance(each, Mapping) else {"type": each} for each in several)
        return "; or ".join(dict.fromkeys(takes(each, defs) for each in kinds))
    return _one(field, defs)


def _one(field: Schema, defs: Schema) -> str:
    kind = field.get("type", "any value")
    if kind == "array" and "items" in field:
        return "list of " + re.sub(r"\b(number|object)\b", r"\1s", takes(field["items"], defs))
    if kind == "string" and "pattern" in field:
        fitting = [each for each in TYPED if re.fullmatch(field["pattern"], each)]
        return f"text such as `{fitting[0]}`" if fitting else f"text that matches `{field['pattern']}`"
    return f"{WORDS.get(kind, kind)}{_limits(field)}"


def _limits(field: Schema) -> str:
    texts = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    limits = {name: field[name] for name in texts if field.get(name, WIDEST) < WIDEST}
    if {"minimum", "maximum"} <= limits.keys():
        return f" from {limits['minimum']:,} to {limits['maximum']:,}"
    return "".join(f", {texts[name]} {limit:,}" for name, limit in limits.items())


def default(field: Schema) -> str:
    """The value of a field that is left out.

    >>> default({"default": 1.0}), default({"default": None})
    ('default `1`', 'no')
    """
    value = field.get("default")
    if value in (None, "", [], {}) or isinstance(value, dict):
        return "no"
    return f"default `{value:g}`" if isinstance(value, float) else f"default `{value}`"
