"""YAML with plain values only, limited in size and depth, so that any file is read or refused at once."""

from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 1 << 16
MOST_DEPTH = 16
# Types of a plain word, besides text. No dates: 2020-01-01 is text, as in JSON.
PLAIN = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float")}


def read(path: Path) -> Any:
    """The value in a file. Raises ValueError, with the file's name, if it cannot be read or `parse` refuses it."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    return parse(data, str(path))


def parse(text: str | bytes, name: str) -> Any:
    """The value of a YAML text. Raises ValueError, one line that begins with ``name``, for invalid YAML.

    It also refuses more than 64 KiB, more than 16 levels, aliases and tags: with aliases a few lines can expand to more
    than memory holds.

    >>> parse("{ranks: 4, sizes: [4, 64K], day: 2020-01-01}", "an example")
    {'ranks': 4, 'sizes': [4, '64K'], 'day': '2020-01-01'}
    >>> parse("[&a [1], *a]", "an example")
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
    """Valid YAML that `parse` refuses."""


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
