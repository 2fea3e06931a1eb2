"""A JSON Schema's fields as a Markdown table: what the book's reference shows, and nothing that the schema lacks."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from collectives.schemas import schema

Schema = Mapping[str, Any]

# A typed quantity is shown by the first of these that its pattern accepts.
TYPED = ("5ms", "25GB/s", "64K")
WORDS = {"array": "list", "integer": "whole number", "string": "text"}
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
WIDEST = 1 << 53  # a limit above that says nothing to a reader


def objects(name: str) -> str:
    """Return a table for each object that the fields of a schema of ours refer to, below its name and description."""
    whole = schema(name)
    found = {key: each for key, each in whole["$defs"].items() if "properties" in each}
    said = {
        key: each.get("description", "").partition(">>>")[0].rstrip() for key, each in found.items()
    }
    heads = {key: ": ".join(filter(None, [f"*{key}*", text])) for key, text in said.items()}
    return "\n\n".join(f"{heads[key]}\n\n{fields(each, whole)}" for key, each in found.items())


def fields(of: Schema, whole: Schema | None = None) -> str:
    """Return the properties of an object's schema, a row each.

    ``whole`` has the ``$defs`` that it refers to.

    >>> print(fields({"properties": {"p": {"type": "integer"}, "q": {"default": 2}}, "required": ["p"]}))
    | field | takes | needed |
    |---|---|---|
    | `p` | whole number | yes |
    | `q` | any value | default `2` |
    """
    defs, needed = (whole or of).get("$defs", {}), of.get("required", ())
    rows = [
        [
            f"`{name}`",
            takes(field, defs),
            "yes" if name in needed else _default(field),
            field.get("description", ""),
        ]
        for name, field in of["properties"].items()
    ]
    columns = 4 if any(row[3] for row in rows) else 3
    return table(["field", "takes", "needed", "meaning"][:columns], (row[:columns] for row in rows))


def _default(field: Schema) -> str:
    value = field.get("default")
    return "no" if value in (None, "", [], {}) or isinstance(value, dict) else f"default `{value}`"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; a bar in a cell is written so that it does not end the cell."""
    head = list(head)
    cells = [[each.replace("|", r"\|") for each in row] for row in [head, *rows]]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]])


def takes(field: Schema, defs: Schema) -> str:
    r"""Return the values that a field takes.

    >>> takes({"anyOf": [{"type": "array", "items": {"enum": ["a", "b"]}}, {"type": "null"}]}, {})
    'list of `a`, `b`; or null'
    >>> takes({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 1024}}, {})
    'list of whole number ≥\xa01, ≤\xa01,024'
    """
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"*{name}*" if "properties" in defs[name] else takes(defs[name], defs)
    if "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        return ", ".join("null" if each is None else f"`{each}`" for each in values)
    kind = field.get("type", "any value")
    if several := field.get("anyOf") or (
        isinstance(kind, list) and [{"type": each} for each in kind]
    ):
        return "; or ".join(dict.fromkeys(takes(each, defs) for each in several))
    if kind == "array" and "items" in field:
        return f"list of {takes(field['items'], defs)}"
    if kind == "string" and "pattern" in field:
        typed = [each for each in TYPED if re.fullmatch(field["pattern"], each)]
        return f"text such as `{typed[0]}`" if typed else f"text that matches `{field['pattern']}`"
    limits = [
        f"{sign}\N{NO-BREAK SPACE}{field[name]:,}"
        for name, sign in LIMITS.items()
        if field.get(name, WIDEST) < WIDEST
    ]
    return f"{WORDS.get(str(kind), kind)} {', '.join(limits)}".rstrip()
