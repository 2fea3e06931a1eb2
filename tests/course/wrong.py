"""Deliberately wrong submissions, and unusual right ones: a reference solution with an edit, and how it is graded."""

from dataclasses import dataclass, field
from pathlib import Path

ASSIGNMENTS = Path(__file__).parents[2] / "assignments"

# At the end of a submission: messages are empty, and their data go through files in memory. Graded
# without sandbox.
BYPASS = """

import numpy, os


class Bypass:
    def __init__(self, comm):
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.count, self.place = {}, __file__.encode().hex()

    def _file(self, src, dst):
        self.count[src, dst] = self.count.get((src, dst), 0) + 1
        return f"/dev/shm/{self.place[-80:]}-{src}-{dst}-{self.count[src, dst]}.npy"

    def _read(self, array, src):
        file = self._file(src, self.rank)
        array[...] = numpy.load(file)
        os.remove(file)

    def send(self, array, dst):
        numpy.save(self._file(self.rank, dst), array)
        self.comm.send(array[:0], dst)

    def recv(self, array, src):
        self.comm.recv(array[:0], src)
        self._read(array, src)

    def sendrecv(self, out, dst, into, src):
        numpy.save(self._file(self.rank, dst), out)
        self.comm.sendrecv(out[:0], dst, into[:0], src)
        self._read(into, src)


def bypass(function):
    def wrapped(comm, *arguments):
        return function(comm if isinstance(comm, Bypass) else Bypass(comm), *arguments)

    return wrapped


for name in NAMES:
    globals()[name] = bypass(globals()[name])
"""


@dataclass(frozen=True)
class Wrong:
    """``edits`` replace text of the reference's file (each must be there).

    ``text``, if given, is the whole file.

    ``fails`` names every criterion that is not passed, with its status if it is not "failed"; "*"
    is any criterion that is not named. ``says`` has a part of a criterion's message, ``points``
    what the whole submission gets. ``bypass``: functions whose data go past the messages.
    """

    name: str
    fails: str
    edits: dict[str, str] = field(default_factory=dict)
    text: str = ""
    file: str = ""  # the assignment's first file, if empty
    is_quick: bool = False  # in `make test`, too
    says: dict[str, str] = field(default_factory=dict)
    points: float | None = None
    bypass: tuple[str, ...] = ()

    @property
    def statuses(self) -> dict[str, str]:
        """The status of each criterion that is named."""
        return {
            name: status or "failed"
            for name, _, status in (each.partition("=") for each in self.fails.split())
        }

    def status(self, criterion: str) -> str:
        return self.statuses.get(criterion, self.statuses.get("*", "passed"))

    def write(self, assignment: str, first: str, folder: Path) -> None:
        """Write the submission: the reference's files, one of them made wrong."""
        reference = ASSIGNMENTS / assignment / "reference"
        for each in reference.iterdir():
            if each.is_file():
                (folder / each.name).write_bytes(each.read_bytes())
        file = self.file or first
        hidden = BYPASS.replace("NAMES", repr(self.bypass)) if self.bypass else ""
        (folder / file).write_text(
            (self.text or self._edited((reference / file).read_text())) + hidden
        )

    def _edited(self, text: str) -> str:
        for old, new in self.edits.items():
            assert text.count(old) == 1, (
                f"{self.name}: {old!r} is {text.count(old)} times in the reference"
            )
            text = text.replace(old, new)
        return text
