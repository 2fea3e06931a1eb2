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
    tables = []
    for key, definition in whole["$defs"].items():
        if "properties" not in definition:
            continue
        # Without the examples of a docstring.
        description = definition.get("description", "").partition(">>>")[0].rstrip()
        head = f"*{key}*: {description}" if description else f"*{key}*"
        tables.append(f"{head}\n\n{fields(definition, whole)}")
    return "\n\n".join(tables)


def fields(of: Schema, whole: Schema | None = None) -> str:
    """Return the properties of an object's schema, a row each.

    ``whole`` has the ``$defs`` that it refers to.

    >>> print(fields({"properties": {"p": {"type": "integer"}, "q": {"default": 2}}, "required": ["p"]}))
    | field | takes | needed |
    |---|---|---|
    | `p` | whole number | yes |
    | `q` | any value | default `2` |
    """
    defs = (whole or of).get("$defs", {})
    required = of.get("required", ())
    rows = []
    for name, field in of["properties"].items():
        needed = "yes" if name in required else _default(field)
        rows.append([f"`{name}`", takes(field, defs), needed, field.get("description", "")])
    head = ["field", "takes", "needed", "meaning"]
    if not any(meaning for *_, meaning in rows):
        head = head[:-1]
    return table(head, [row[: len(head)] for row in rows])


def _default(field: Schema) -> str:
    value = field.get("default")
    if value in (None, "", []) or isinstance(value, dict):
        return "no"
    return f"default `{value}`"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; a bar in a cell is written so that it does not end the cell."""
    head = list(head)
    lines = [_line(head), f"|{'---|' * len(head)}"]
    lines += [_line(row) for row in rows]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    escaped = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


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
        return ", ".join("null" if value is None else f"`{value}`" for value in values)
    kind = field.get("type", "any value")
    several = field.get("anyOf", [])
    if isinstance(kind, list):
        several = several or [{"type": name} for name in kind]
    if several:
        texts = [takes(one, defs) for one in several]
        return "; or ".join(dict.fromkeys(texts))
    if kind == "array" and "items" in field:
        return f"list of {takes(field['items'], defs)}"
    if kind == "string" and "pattern" in field:
        pattern = field["pattern"]
        for example in TYPED:
            if re.fullmatch(pattern, example):
                return f"text such as `{example}`"
        return f"text that matches `{pattern}`"
    limits = []
    for name, sign in LIMITS.items():
        limit = field.get(name, WIDEST)
        if limit < WIDEST:
            limits.append(f"{sign}\N{NO-BREAK SPACE}{limit:,}")
    return f"{WORDS.get(str(kind), kind)} {', '.join(limits)}".rstrip()
