"""Deliberately wrong submissions: a reference solution with an edit, and the criteria that it must not meet."""

from dataclasses import dataclass, field
from pathlib import Path

ASSIGNMENTS = Path(__file__).parents[2] / "assignments"


@dataclass(frozen=True)
class Wrong:
    """``edits`` replace text of the reference's file (each must be there); ``text``, if given, is the whole file.

    ``fails`` has the status of every criterion that is not passed; "*" is any criterion that is not named.
    """

    name: str
    fails: dict[str, str]
    edits: dict[str, str] = field(default_factory=dict)
    text: str = ""
    file: str = ""  # the assignment's first file, if empty
    is_quick: bool = False  # in `make test`, too

    def write(self, assignment: str, first: str, folder: Path) -> None:
        """Write the submission: the reference's files, one of them made wrong."""
        reference = ASSIGNMENTS / assignment / "reference"
        for each in reference.iterdir():
            if each.is_file():
                (folder / each.name).write_bytes(each.read_bytes())
        file = self.file or first
        (folder / file).write_text(self.text or self._edited((reference / file).read_text()))

    def _edited(self, text: str) -> str:
        for old, new in self.edits.items():
            assert text.count(old) == 1, f"{self.name}: {old!r} is {text.count(old)} times in the reference"
            text = text.replace(old, new)
        return text
