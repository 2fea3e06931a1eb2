"""Where the tests find the repository, its scripts, and what their ranks do."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
TASKS = Path(__file__).parent / "ranks"


def script(name: str) -> ModuleType:
    """A script of `.ci` as a module of its own."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
