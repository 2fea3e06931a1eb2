"""JSON Schemas of the files and rows that others may read, and the version of them that this release writes."""

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from collectives.errors import short

# Raised when a file or row of this release could surprise a reader of the last one; a reader
# accepts all older ones.
VERSION = 1


def schema(name: str) -> dict[str, Any]:
    """Return a JSON Schema (2020-12) by name.

    "machine" describes a machine's file, "rows" the rows of ``--json``, "record" the file beside
    results, and "grade" a graded submission's ``grade.json``. ``$defs`` of "rows" has one entry for
    each kind of row.

    >>> schema("machine")["required"]
    ['name']
    """
    path = resources.files("collectives") / "schemas" / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf8")))


def version_of(given: Mapping[str, Any], what: str, unsaid: int = 0) -> int:
    """Return the version by which a file was written; ``unsaid`` if it names none.

    Raises ValueError for a version newer than this release knows.

    >>> version_of({"version": 1}, "machine mine"), version_of({}, "rows.json")
    (1, 0)
    """
    version = given.get("version", unsaid)
    if type(version) is not int or not 0 <= version <= VERSION:
        hint = (
            "; a newer release of collectives reads it"
            if isinstance(version, int) and version > VERSION
            else ""
        )
        raise ValueError(
            f"{what}: schema version: got {short(version)}, expected 0 to {VERSION}{hint}"
        )
    return version
