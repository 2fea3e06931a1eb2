"""Grade an assignment in a page by the grader's own criteria, on ranks that take turns in this process.

A page has one thread for Python, so a rank cannot wait there: it stops where it asks for something. When the grader has
answered, its function begins anew, with the arguments as they were given, and gets the earlier answers again until it
asks the next question. Neither the sandbox nor a limit of seconds is here.
"""

import builtins
import math
import secrets
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ASSIGNMENTS = Path(__file__).parent / "assignments"
NOT_HERE = (
    "Not tested here: the limit of seconds, and the sandbox, in which nothing else can be imported."
)


def stand_in() -> None:
    """Give the grader's modules what a page has in place of processes."""
    sandbox = ModuleType("collectives_course.sandbox")
    sandbox.__dict__.update(Limits=lambda: SimpleNamespace(memory=math.inf), RankProcess=Rank)
    sandbox.__dict__.update(SandboxError=RuntimeError)
    sys.modules["collectives_course.sandbox"] = sandbox
    # A browser's Python has neither.
    sys.modules["resource"] = ModuleType("resource")
    time.thread_time = time.perf_counter

    from collectives_course import schedules
    from collectives_course.world import World

    World.selector = Turns
    schedules.player_details = lambda _call, schedule: {"schedule": schedule}


class AskedError(BaseException):
    """End a rank's turn; no submission takes it for an error of its own."""


class Rank:
    """A rank of a submission, in place of its process, and the grader's connection to it."""

    header = moved = 0

    def __init__(self, folder: Path, *_limits: Any) -> None:
        from collectives_course.rank import loader
        from collectives_course.world import UsageMeter

        self.channel = self.end = self
        self.meter, self.load = UsageMeter(), loader(folder)
        self.call, self.question, self.answers = b"", b"", list[Any]()
        self.known = iter(self.answers)

    def wait_until_ready(self) -> None:
        """Return at once."""

    def kill(self) -> None:
        """Do nothing, because a rank in the page has no process to end."""

    def flush(self) -> None:
        """Do nothing: what was sent has arrived."""

    def send(self, value: Any) -> None:
        """Take a call, or the answer to the last question."""
        from collectives_course.wire import pack

        if "call" in value:
            self.call, self.answers = pack(value), []
        else:
            self.answers.append(value)

    def receive(self) -> list[Any]:
        """Return the rank's next question, or how its call has ended."""
        from collectives_course.rank import answer
        from collectives_course.wire import unpack

        self.question, self.known = b"", iter(self.answers)
        ended = answer(unpack(self.call), self.ask, self.load, as_in_the_sandbox)
        return [unpack(self.question or ended)]

    def ask(self, question: Any) -> Any:
        """Return the earlier answer. Raises AskedError, which ends the turn, if there is none yet."""
        from collectives_course.wire import pack

        for answer in self.known:
            return answer
        self.question = self.question or pack(question)
        raise AskedError


class Turns:
    """Tell which ranks can go on, as a selector tells which sockets can be read."""

    def __init__(self) -> None:
        self.ranks: list[Any] = []

    def __enter__(self) -> "Turns":
        return self

    def __exit__(self, *_: object) -> None: ...

    def register(self, _end: Any, _events: int, rank: Any) -> None:
        """Take a rank in."""
        self.ranks.append(rank)

    def select(self, _seconds: float) -> list[tuple[Any, int]]:
        """Return the ranks that wait for no other."""
        return [(SimpleNamespace(data=rank), 1) for rank in self.ranks if rank.has_turn]


@contextmanager
def as_in_the_sandbox() -> Iterator[None]:
    """Let a submission import no algorithm of the library, and no library that has collectives.

    A rank's warnings go nowhere, as in its process: where infinities meet, numpy warns in the middle of
    a right sum.
    """
    from collectives_course.rank import FORBIDDEN_MODULES

    anything = builtins.__import__

    def imported(name: str, *more: Any) -> Any:
        if name == "collectives" or name.startswith(FORBIDDEN_MODULES):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return anything(name, *more)

    builtins.__import__ = imported
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        builtins.__import__ = anything


def verdicts(name: str, seed: int, source: str, secret: str = "") -> list[Any]:
    """Return the verdict on each criterion of an assignment, for the text of the file that a student edits.

    The test data are drawn from ``secret``, a hexadecimal number; a new one, if it is empty.
    """
    from collectives_course import assignment
    from collectives_course.submission import Submission

    read, secret = assignment.read(ASSIGNMENTS / name), secret or secrets.token_hex(16)
    (file,) = read.facts.files
    variant = read.variant(seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / file).write_text(source, encoding="utf8")
        (folder / "variant.py").write_text(assignment.variant_text(read, seed), encoding="utf8")
        with importable(folder, Path(file).stem, "variant"):
            return [
                criterion.judged(
                    Submission(folder, file, variant, seed, limit=math.inf, secret=secret)
                )
                for criterion in read.criteria
            ]


@contextmanager
def importable(folder: Path, *modules: str) -> Iterator[None]:
    """Let modules of a folder be imported, and forget them afterwards."""
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes_bytecode
        for module in modules:
            sys.modules.pop(module, None)


def table(found: list[Any]) -> str:
    """Return the verdicts as a table, in HTML."""
    rows = []
    for verdict in found:
        grid = verdict.details.get("grid")
        said = f"<br>{escape(verdict.message)}" if verdict.message else ""
        shown = f'<pre class="live-text">{escape(grid)}</pre>' if grid else ""
        points = f"{verdict.points:g}\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}{verdict.of:g}"
        rows.append(
            f"<tr><td>{verdict.status}</td><td>{points}</td><td>{escape(verdict.text)}{said}{shown}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table><p>{NOT_HERE}</p>"
