"""Task of ranks: rank 0 reports the variables that each rank has, and whether a file is there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collectives.bench.report import gathered


def run(settings: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    found = gathered([os.environ.get(name) for name in settings["names"]])
    exists = {"exists": Path(settings["exists"]).exists()} if "exists" in settings else {}
    report({"environments": found} | exists)
