"""Where the tests find the repository, and what their ranks do."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
TASKS = Path(__file__).parent / "ranks"
