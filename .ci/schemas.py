"""Write the JSON Schema that follows from a model: src/collectives/schemas/machine.json."""

import json
from pathlib import Path
from typing import Any

from collectives import schemas
from collectives.machine import Machine

FOLDER = Path(schemas.__file__).parent


def machine() -> dict[str, Any]:
    """The schema of a machine's file: the model's, and the version."""
    made = Machine.model_json_schema(mode="validation")
    made["required"].remove("network")  # a machine with links has none where it has one node
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:collectives:machine:{schemas.VERSION}",
        **made,
        "anyOf": [{"required": ["network"]}, {"required": ["links", "inside"]}],
        "properties": {"version": {"enum": list(range(schemas.VERSION + 1))}, **made["properties"]},
    }


def text(schema: dict[str, Any]) -> str:
    """A schema as its file has it."""
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    (FOLDER / "machine.json").write_text(text(machine()), encoding="utf8")
