"""torch's own tests of process groups, which its wheel has, on gloo and on our back end.

    python tests/torch_backend/torch_tests.py collectives test_all_reduce_sum
    test_DistributedDataParallel python tests/torch_backend/torch_tests.py collectives
    # all of them, compared with torch_tests.csv python tests/torch_backend/torch_tests.py
    collectives --write      # and written into it: three minutes

It imports torch and the tests once, and forks the ranks of each test. When the tests are imported,
they decide by WORLD_SIZE and BACKEND which of them are skipped. So there are four runs: three
ranks, then eight and four for the tests that need so many, then "mpi" as BACKEND for those that
torch runs over MPI alone. The back end that is tested is ours or gloo in each.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collectives.processes import die_with

TABLE = Path(__file__).with_suffix(".csv")

# Ranks, what the tests take for BACKEND, and which of the skipped tests run.
RUNS = (
    (3, "gloo", ""),
    (8, "gloo", "small world size"),
    (4, "gloo", "world size of 4"),
    (4, "mpi", "Only MPI"),
)

# Seconds that a test may take; torch's own list allows some of them more.
TIMEOUT = 60


class Outcome(NamedTuple):
    """What became of one test."""

    test: str
    ranks: int
    outcome: str  # passed, skipped or failed
    seconds: float
    why: str


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run torch's own tests of process groups.")
    parser.add_argument("backend", choices=["gloo", "collectives"])
    parser.add_argument("tests", nargs="*", help="names of tests; by default all")
    parser.add_argument(
        "--write", action="store_true", help="write the outcomes into torch_tests.csv"
    )
    parser.add_argument("--ranks", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--log", default=os.devnull, help="a file for what the ranks print")
    given = parser.parse_intermixed_args(arguments)
    if given.ranks:
        serve(given.backend, given.ranks, given.tests)
        return
    found = {}
    for outcome in outcomes(given.backend, given.tests, log=given.log):
        found[outcome.test] = outcome
        print(
            outcome.outcome,
            outcome.test,
            f"{outcome.ranks} ranks, {outcome.seconds:.1f} s",
            outcome.why,
            flush=True,
        )
    if given.write:
        write(given.backend, found)
    known = {row["test"]: row[given.backend] for row in table()}
    differ = [test for test, outcome in found.items() if outcome.outcome != known.get(test)]
    sys.exit(f"not as in {TABLE.name}: {', '.join(differ)}" if differ else 0)


def outcomes(backend: str, tests: Sequence[str], log: str = os.devnull) -> Iterator[Outcome]:
    """Run tests, by default all; what one run skips may be for a later one."""
    skipped: dict[str, Outcome] = {}
    for ranks, taken_for, reason in RUNS:
        chosen = (
            [test for test, outcome in skipped.items() if reason in outcome.why]
            if skipped
            else tests
        )
        for outcome in run(backend, ranks, taken_for, chosen, log) if chosen or not skipped else ():
            skipped.pop(outcome.test, None)
            if outcome.outcome == "skipped":
                skipped[outcome.test] = outcome
            else:
                yield outcome
        if not skipped:
            break
    yield from skipped.values()


def run(
    backend: str, ranks: int, taken_for: str, tests: Sequence[str], log: str
) -> Iterator[Outcome]:
    """Run tests in a process whose environment they read when they are imported."""
    command = [sys.executable, __file__, backend, "--ranks", str(ranks), *tests]
    own = {
        "BACKEND": taken_for,
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    own |= {"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TIMEOUT), "PYTHONFAULTHANDLER": "1"}
    with tempfile.TemporaryDirectory() as folder, Path(log).open("a") as printed:
        own |= {"TMPDIR": folder, "INIT_METHOD": f"file://{folder}/met"}
        process = subprocess.Popen(
            command, env=os.environ | own, stdout=subprocess.PIPE, stderr=printed, text=True
        )
        with process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    yield Outcome(**json.loads(line))
                if process.wait():
                    raise RuntimeError(
                        f"the process of the tests ended with exit code {process.returncode}: see --log"
                    )
            finally:
                process.kill()


def serve(backend: str, ranks: int, tests: Sequence[str]) -> None:
    """In that process: run tests and print the outcomes as JSON."""
    die_with(os.getppid())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the tests print is not ours
    case = suite(backend)
    for test in tests or unittest.TestLoader().getTestCaseNames(case):
        began = time.monotonic()
        result = unittest.TestResult()
        case(test).run(result)
        outcome, why = judged(result)
        print(
            json.dumps(Outcome(test, ranks, outcome, time.monotonic() - began, why)._asdict()),
            file=answers,
            flush=True,
        )


class TakenForGloo(str):
    """The name of a back end, for which tests do what they do for gloo."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    __hash__ = str.__hash__


def suite(backend: str) -> Any:
    """The tests as a class.

    They have read BACKEND when they were imported, and now read the name that is tested.
    """
    from torch.testing._internal.distributed import distributed_test as theirs

    if backend == "collectives":
        import collectives.torch_backend  # noqa: F401

    theirs.BACKEND = TakenForGloo(backend)
    parent = os.getpid()

    class OwnTests(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(theirs.torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *arguments: Any, **named: Any) -> None:
            die_with(parent)
            super()._run(*arguments, **named)

    return OwnTests


def judged(result: unittest.TestResult) -> tuple[str, str]:
    """Passed, skipped or failed, and why: the reason, or the last line of the first error."""
    if result.errors or result.failures:
        _, text = (result.errors + result.failures)[0]
        return "failed", cause(text)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    return "passed", ""


def cause(traceback: str) -> str:
    """The line of a traceback of ranks that says what was wrong.

    >>> cause("Traceback\\n  ...\\nRuntimeError: Process 0 exited with error code 10 and exception:\\n"
    ...       "Traceback\\n  ...\\nValueError: no\\n\\n")
    'ValueError: no'
    """
    said = re.findall(
        r"^(?:\w+\.)*\w*(?:Error|Exception|Timeout|Interrupt)\w*: .*", traceback, re.MULTILINE
    )
    of_ranks = [line for line in said if not line.startswith("RuntimeError: Process ")]
    return (of_ranks or said or traceback.strip().splitlines())[-1 if not of_ranks else 0][:300]


def table() -> list[dict[str, str]]:
    """The committed outcomes, a row for each test."""
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def write(backend: str, found: dict[str, Outcome]) -> None:
    """Replace one back end's outcomes; a failure keeps its explanation."""
    known = {row["test"]: row for row in table()} if TABLE.exists() else {}
    for test, outcome in found.items():
        row = known.setdefault(
            test, dict.fromkeys(["test", "ranks", "gloo", "collectives", "why"], "")
        )
        row |= {"test": test, "ranks": str(outcome.ranks), backend: outcome.outcome}
        if outcome.outcome == "skipped":
            row["why"] = outcome.why
        elif "failed" not in row.values():
            row["why"] = ""
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(
            file, ["test", "ranks", "gloo", "collectives", "why"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(known[test] for test in sorted(known))


if __name__ == "__main__":
    main()
