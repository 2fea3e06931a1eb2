"""The verb ``verify``, which proves schedules by counting every contribution.

Of files in formats of others it knows nothing: an entry point of the group ``collectives.verify``
has their suffix as its name, without the dot, and names a function that takes the parsed arguments,
with all files in ``arguments.files``, and prints a row for each.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectives import units
from collectives.algorithms import ALGORITHMS, build, variants
from collectives.algorithms.from_file import suffixes
from collectives.cli import TIMEOUT, Verb, add_json, limit, out_row, size, whole
from collectives.cli.schedules import OF_SCHEDULE, add_schedule, built, limited, refuse
from collectives.core.schedule import Schedule, ScheduleError
from collectives.core.verify import COUNTED_RANKS, check_cells, exact, verify
from collectives.processes import workers

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

Row = dict[str, Any]

OF_FILES = "collectives.verify"

# Without --max-ranks: every contribution is counted for these numbers of ranks, and fingerprints
# are compared for one larger number, which depends on how many chunks p ranks have.
COUNTED_FOR = (*range(1, 65), 96, 100, 127, 128)
LARGE = {"p * p": 256, "p": 1024, "few": 4096}
PROGRESS_SECONDS = 10.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser, units.MAX_RANKS, nargs="?")
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="instead: files in formats of others, such as programs in MSCCL XML",
    )
    parser.add_argument(
        "--all", action="store_true", help="every algorithm, all its roots, segments and nodes"
    )
    most = f"with --all: 1 to P ranks (default: {COUNTED_RANKS}, and more)"
    parser.add_argument("--max-ranks", type=whole(COUNTED_RANKS), metavar="P", help=most)
    parser.add_argument(
        "--machine", help="with FILE: simulated there too; a preset, or your own NAME.yaml"
    )
    parser.add_argument("--bytes", type=size, help="with --machine (default 1M)")
    add_json(parser)


def _verify(arguments: argparse.Namespace) -> None:
    """Print a row for each proof. Raises RuntimeError for a schedule that is wrong."""
    given = [arguments.collective, arguments.algorithm, *arguments.files]
    words = [word for word in given if word is not None]
    of_files = suffixes(OF_FILES)
    are_files = bool(words) and all(Path(word).suffix in of_files for word in words)
    if are_files and not arguments.all:
        arguments.files = words
        refuse(arguments, (*OF_SCHEDULE, "max_ranks"), "FILE")
        verify_files = of_files[Path(words[0]).suffix].load()
        with limit(arguments.timeout or TIMEOUT, "verify"):
            verify_files(arguments)
        return
    if arguments.machine or arguments.bytes:
        raise ValueError(
            "--machine and --bytes go with FILE: `simulate` has them for other schedules"
        )
    # --all stands alone, and without it there are two words.
    is_fitting = not words if arguments.all else len(words) == 2
    if not is_fitting:
        if arguments.all:
            words.append("--all")
        got = " ".join(words)[:80] or "nothing"
        expected = ["a collective and an algorithm", "--all"]
        if of_files:
            expected.insert(1, f"files that end in {' or '.join(of_files)}")
        raise ValueError(f"verify: got {got}, expected either {', or '.join(expected)}")
    with limited(arguments, [arguments.algorithm]):
        if not arguments.all:
            _verify_one(arguments)
            return
        refuse(arguments, OF_SCHEDULE, "--all")
        with _proof():
            for row in proofs(arguments.max_ranks):
                out_row(row, _proof_line(row), arguments.json)


def _verify_one(arguments: argparse.Namespace) -> None:
    if arguments.max_ranks is not None:
        raise ValueError("--max-ranks goes with --all: got a single algorithm, expected -p")
    schedule = proved(arguments)
    how = "every contribution counted" if exact(schedule) else "by fingerprints"
    row = {
        "collective": arguments.collective,
        "algorithm": arguments.algorithm,
        "ranks": schedule.p,
        "method": how,
    }
    out_row(
        row,
        f"ok  {arguments.collective} {arguments.algorithm} on {schedule.p} ranks, {how}",
        arguments.json,
    )


def proved(arguments: argparse.Namespace) -> Schedule:
    """Return the schedule that the arguments name. Raises RuntimeError if it is wrong."""
    schedule = built(arguments)
    check_cells(schedule.p, schedule.k)
    with _proof():
        verify(schedule)
    return schedule


@contextmanager
def _proof() -> Iterator[None]:
    """Raise RuntimeError in the block for a schedule that is wrong, because that is a failure, not wrong input."""
    try:
        yield
    except ScheduleError as error:
        raise RuntimeError(str(error)) from error


def proofs(max_ranks: int | None) -> Iterator[Row]:
    """Yield a row for each algorithm when it is proved on 1 to ``max_ranks`` ranks.

    Raises ScheduleError if not.

    A job is one algorithm on one number of ranks, so that all cores work until the end. The longest
    come first: the proofs by fingerprints, then the last algorithms of the table, on many ranks. Of
    several wrong schedules of an algorithm the one on the fewest ranks is shown.
    """
    counted = COUNTED_FOR if max_ranks is None else range(1, max_ranks + 1)
    with workers() as pool:
        large = (
            {}
            if max_ranks is not None
            else {n: pool.submit(_prove_large, *n) for n in reversed(ALGORITHMS)}
        )
        jobs = {names: _submit_counted(pool, names, counted) for names in reversed(ALGORITHMS)}
        of_job = {job: names for names, each in jobs.items() for job in each}
        of_job |= {job: names for names, job in large.items()}
        open_jobs = Counter(of_job.values())
        for job in _with_progress(as_completed(of_job), len(of_job)):
            names = of_job[job]
            open_jobs[names] -= 1
            if not open_jobs[names]:
                schedules = sum(job.result() for job in jobs[names])
                yield _proof_row(names, max(counted), schedules, large.get(names))


def _submit_counted(
    pool: "ProcessPoolExecutor", names: tuple[str, str], counted: Sequence[int]
) -> list["Future[int]"]:
    """Submit one algorithm's proofs on these numbers of ranks, the largest first.

    Return them in ascending order.
    """
    descending = [pool.submit(_prove_counted, *names, p) for p in sorted(counted, reverse=True)]
    return descending[::-1]


def _with_progress(jobs: Iterable["Future[int]"], count: int) -> Iterator["Future[int]"]:
    """Yield the jobs, and say on standard error how many have ended, some seconds after it was said last."""
    said = time.monotonic()
    for ended, job in enumerate(jobs, 1):
        if time.monotonic() > said + PROGRESS_SECONDS:
            said = time.monotonic()
            print(f"collectives: {ended} of {count} proofs", file=sys.stderr, flush=True)
        yield job


def _prove_counted(collective: str, algorithm: str, p: int) -> int:
    """Verify all variants of one algorithm on p ranks, and return their number."""
    number = 0
    for schedule in variants(collective, algorithm, p):
        verify(schedule)
        number += 1
    return number


def _prove_large(collective: str, algorithm: str) -> int:
    """Verify one algorithm by fingerprints, and return its number of ranks."""
    k = build(collective, algorithm, 16).k
    large = LARGE["p * p" if k == 256 else "p" if k >= 16 else "few"]
    verify(build(collective, algorithm, large))
    return large


def _proof_row(
    names: tuple[str, str], most: int, schedules: int, large: "Future[int] | None"
) -> Row:
    row = {"collective": names[0], "algorithm": names[1], "max_ranks": most, "schedules": schedules}
    return row | {"fingerprints_at": None if large is None else large.result()}


def _proof_line(row: Row) -> str:
    large = f", fingerprints at {row['fingerprints_at']}" if row["fingerprints_at"] else ""
    return (
        f"ok  {row['collective']:<16}{row['algorithm']:<20}{row['schedules']:>6} schedules on up to "
        f"{row['max_ranks']} ranks counted{large}"
    )


VERIFY = Verb(_arguments, _verify)
