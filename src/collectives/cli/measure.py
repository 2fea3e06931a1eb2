"""The verbs that measure: ``bench``, ``compare``, ``error``."""

import argparse
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from collectives import units
from collectives.algorithms import build, is_program, names, own, takes
from collectives.cli import (
    TIMEOUT,
    Verb,
    add_json,
    csv_text,
    limit,
    out,
    out_row,
    seconds,
    size,
    whole,
)
from collectives.cli.schedules import OPTIONS, RANKS, add_schedule, complete, limited, save
from collectives.codecs import CODECS
from collectives.core.contracts import CONTRACTS, REDUCING, ROOTED
from collectives.errors import explain, unknown

if TYPE_CHECKING:
    from collectives.bench import Row, Settings

# The options of `bench` that are fields of `collectives.bench.Settings`, with the same defaults.
FIELDS: tuple[str, ...] = ("backends", "where", "dtype", "op", "root", "in_place", "back_to_back")
FIELDS += (
    "persistent",
    "segments",
    "machine",
    "share_gpus",
    "repetitions",
    "warmups",
    "timeout",
)

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
HEAD = (
    f"{'algorithm':<28} {'ranks':>6} {'dtype':>8} {'depth':>6} {'bound':>9} {'rms':>9} {'worst':>9}"
)


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options. `Settings` have the limits of their values."""
    add, number = parser.add_argument, whole(least=0)
    text = "such as all_reduce (the default), or several; not before FILE.xml, which has its own"
    add("collective", nargs="?", help=text)
    text = "such as ring two_tree, FILE.py:FUNCTION or FILE.xml (MSCCL), for our back ends (default auto)"
    add("algorithms", nargs="*", metavar="algorithm", help=text)
    text = "`collectives backends` lists them; mpi:ring, mpi:sm, nccl:Tree/Simple name an algorithm (default p2p)"
    add("--backend", nargs="+", default=["p2p"], dest="backends", metavar="BACKEND", help=text)
    text = "one launch for each (default 4)"
    add("-p", "--ranks", nargs="+", type=number, metavar="RANKS", help=text)
    text = (
        "what starts ranks: loopback, slurm, cluster:5ms,25MB/s …; "
        "Horovod and MPI have their own, except on a cluster"
    )
    add("--where", default="loopback", help=f"{text} (default loopback)")
    text = "sizes, also typed as 64K or 1M (default 4 65536 1048576)"
    add("--bytes", nargs="+", type=size, metavar="BYTES", help=text)
    add("--dtype", default="float32", help="of the elements (default float32)")
    add("--op", default="sum", help="of a collective that reduces (default sum)")
    add(
        "--root",
        type=number,
        default=0,
        help="of a collective that starts from or ends at one rank (default 0)",
    )
    text = (
        "one buffer for input and output, as nccl-tests means it (default: as torch's functions do)"
    )
    add("--in-place", action=argparse.BooleanOptionalAction, help=text)
    add("--segments", type=number, help="for pipelined algorithms (default: from the size)")
    text = "what auto goes by, and lower bounds: a preset, FILE.yaml or LATENCY,RATE"
    add("--machine", help=text)
    text = "no barrier between the timed calls of a back end, each in a launch of its own, as nccl-tests times"
    add("--back-to-back", action="store_true", help=text)
    text = "more ranks on loopback than GPUs, each a host of its own to NCCL; emulated hosts do so anyway"
    add("--share-gpus", action="store_true", help=text)
    text = (
        "calls that are prepared once, as MPI 4's MPI_Allreduce_init, by back ends that have them"
    )
    add("--persistent", action="store_true", help=text)
    add("--repetitions", type=number, help="timed calls (default 20, or 200 back to back)")
    add("--warmups", type=number, help="calls before that (default 3, or 20 back to back)")
    add(
        "--timeout",
        type=seconds,
        default=TIMEOUT,
        help=f"seconds for one launch (default {TIMEOUT})",
    )
    add("-b", "--minbytes", type=size, help="the first size, instead of --bytes")
    add("-e", "--maxbytes", type=size, help="the last size (default: the first)")
    add("-f", "--stepfactor", type=whole(least=2), help="from a size to the next (default 2)")
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument(
        "--json", action="store_true", help="one JSON object per row, with every sample"
    )
    printed.add_argument(
        "--nccl-tests", action="store_true", help="nccl-tests' table: out of place and in place"
    )
    earlier = parser.add_argument_group("earlier forms of the collectives and algorithms")
    earlier.add_argument("--collective", nargs="+", dest="old_collectives", metavar="COLLECTIVE")
    earlier.add_argument("--algorithm", nargs="+", dest="old_algorithms", metavar="ALGORITHM")


def _bench(arguments: argparse.Namespace) -> int:
    """Print a table for each number of ranks. Return 1 if elements were wrong."""
    from collectives.bench import check_here

    _, algorithms = named(arguments)
    with limit(arguments.timeout, " ".join(["bench", *algorithms])):
        launches = settings(arguments)
    check_here(list(chain.from_iterable(launches)))
    wrong = sum(_measure(wanted, arguments) for wanted in launches)
    if wrong:
        print(f"collectives: {wrong} elements were wrong", file=sys.stderr)
    return int(wrong > 0)


def named(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the collectives and the algorithms that were typed, as words or by the earlier options.

    The words are collectives first, then algorithms; either list may be empty.
    """
    algorithms = [arguments.collective, *arguments.algorithms] if arguments.collective else []
    collectives = []
    while algorithms and algorithms[0] in CONTRACTS:
        collectives.append(algorithms.pop(0))
    if algorithms and not collectives and not is_program(algorithms[0]):
        raise ValueError(unknown("collective", algorithms[0], CONTRACTS))
    return (
        _once("collective", collectives, arguments.old_collectives),
        _once("algorithm", algorithms, arguments.old_algorithms),
    )


def _once(what: str, words: list[str], option: list[str] | None) -> list[str]:
    """Return what was typed as words or by an option. Raises ValueError for both."""
    if words and option:
        got = f"{' '.join(words)} and --{what} {' '.join(option)}"
        raise ValueError(f"{what}: got {got}, expected one of the two")
    return words or option or []


def settings(arguments: argparse.Namespace) -> "list[list[Settings]]":
    """Return for each number of ranks the settings of its measurements, one for each collective."""
    from pydantic import ValidationError

    from collectives.bench import Settings

    default = Settings.model_construct()
    collective, ranks, typed = default.collective, default.ranks, _sizes(arguments)
    collectives, algorithms = named(arguments)
    files = [name for name in algorithms if is_program(name)]
    if files:
        program = own(files[0])(ranks)
        collective, ranks = program.collective, program.p
    collectives = collectives or [collective]
    if arguments.root and not set(collectives) & set(ROOTED):
        raise ValueError(
            f"{', '.join(collectives)} takes no --root: got {arguments.root}, expected none"
        )
    if arguments.op != "sum" and not set(collectives) & set(REDUCING):
        raise ValueError(
            f"{', '.join(collectives)} takes no --op: got {arguments.op}, expected none: it adds nothing"
        )
    typed_options = {name: getattr(arguments, name) for name in FIELDS}
    given = {name: value for name, value in typed_options.items() if value is not None}
    given["algorithms"] = algorithms or default.algorithms
    if typed:
        given["bytes"] = typed
    try:
        return [
            [Settings(collective=each, ranks=p, **given) for each in collectives]
            for p in arguments.ranks or [ranks]
        ]
    except ValidationError as error:
        raise ValueError(explain(error)) from None


def _sizes(arguments: argparse.Namespace) -> list[int] | None:
    """Return the sizes that were typed, or those that -b, -e and -f stand for."""
    typed: list[int] | None = arguments.bytes
    first, last, factor = arguments.minbytes, arguments.maxbytes, arguments.stepfactor or 2
    if first is None:
        if last is not None or arguments.stepfactor:
            raise ValueError("-e and -f: got no -b, expected the first size, too")
        return typed
    last = first if last is None else last
    if typed or not 0 < first <= last:
        beside = "beside --bytes" if typed else f"to -e {last}"
        raise ValueError(
            f"-b: got {first} {beside}, expected a size above 0, at most that of -e, and no --bytes"
        )
    return [first * factor**i for i in range(last.bit_length()) if first * factor**i <= last]


def _measure(wanted: "list[Settings]", arguments: argparse.Namespace) -> int:
    """Measure and print: rows as they come, or nccl-tests' tables at the end.

    Returns how many elements were wrong.

    The tables of what was measured before ranks failed are printed, too.
    """
    from collectives.bench import Measurement, bench
    from collectives.bench.table import both_places, heading, line, note, progress, tables

    as_tables = arguments.nccl_tests
    if as_tables:
        wanted = list(chain.from_iterable(both_places(one) for one in wanted))
    message = note(wanted)
    if message:
        print(f"collectives: {message}", file=sys.stderr, flush=True)
    measured = Measurement([], [])

    def on_event(event: "Row") -> None:
        show_progress(event)
        rows = event.get("rows", [])
        is_first = bool(rows) and not measured.rows
        measured.rows.extend(rows)
        measured.environment.extend(event.get("environment", []))
        if as_tables:
            return  # they are printed at the end
        if is_first and not arguments.json:
            out(heading(wanted))
        for row in rows:
            out_row(row, line(row), arguments.json)

    with progress(wanted) as show_progress:
        try:
            bench(wanted, on_event)
        finally:
            if as_tables:
                for text in tables(wanted[0], *measured):
                    out(text)
    return sum(row["wrong"] for row in measured.rows)


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "two or more: NAME.parquet, a file of what `bench --json` printed, a folder of results, "
        "or the name of a run "
    )
    text += "below experiments/results, as reference/loopback/all-reduce"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=text)
    parser.add_argument(
        "--svg", metavar="NAME", help="draw the ratios: NAME-light.svg, NAME-dark.svg"
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--csv", action="store_true", help="the table as CSV on standard output")
    add_json(printed)


def _compare(arguments: argparse.Namespace) -> None:
    """Print every further run beside the first; as CSV or JSON a row has the names of both."""
    from collectives.bench.compare import (
        compare,
        differences,
        label,
        letters,
        lines,
        look,
        setting_of,
    )
    from collectives.bench.runs import read_runs

    runs = read_runs(arguments.runs)
    first, *others = runs
    names = letters(runs)
    pairs = []
    for name, run in zip(names[1:], others, strict=True):
        compared = compare(first.rows, run.rows, (names[0], name))
        pairs += [{"first": first.name, "second": run.name} | row for row in compared]
    if arguments.svg:
        from collectives.figures.comparison import ratios

        save(
            ratios(pairs, lambda row: f"{row['second']}\n{setting_of(row)}", label, look),
            Path(arguments.svg),
        )
    if not arguments.csv and not arguments.json:
        for text in lines(runs):
            out(text)
        return
    for what, texts in differences(runs).items():
        print(f"{what}: {'; '.join(texts)}", file=sys.stderr)
    if arguments.csv:
        out(csv_text(pairs), end="")
    for row in pairs if arguments.json else ():
        out_row(row, "", as_json=True)


def _error_arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser, units.MAX_RANKS)
    known = f"{', '.join(DTYPES)} (default bf16), or its whole name"
    parser.add_argument("--dtype", default="bf16", help=known)
    text = "format to which messages are rounded; sums are float32 (default: that of the tensor)"
    parser.add_argument("--codec", choices=list(CODECS), help=text)
    parser.add_argument(
        "--data",
        default="normal",
        help="normal, positive, or NAME.npy (ranks x elements; default normal)",
    )
    parser.add_argument(
        "--seeds", type=whole(1000), default=5, help="samples of 1,000 elements (default 5)"
    )
    add_json(parser)


def _error(arguments: argparse.Namespace) -> None:
    """Print a row for the algorithm, or for every one of the collective."""
    from collectives.rounding import REDUCING, measure, samples

    with limited(arguments, [arguments.algorithm]):
        if arguments.algorithm is not None:
            complete(arguments)
        if arguments.collective not in REDUCING:
            raise ValueError(
                f"error: got {arguments.collective}, expected one of {', '.join(REDUCING)}"
            )
        p, dtype = arguments.ranks or RANKS, DTYPES.get(arguments.dtype, arguments.dtype)
        data = list(samples(arguments.data, p, arguments.seeds))
        chosen = [arguments.algorithm] if arguments.algorithm else names(arguments.collective)
        for number, name in enumerate(chosen):
            options = [option for option in OPTIONS if takes(arguments.collective, name, option)]
            schedule = build(
                arguments.collective,
                name,
                p,
                **{each: getattr(arguments, each) for each in options},
            )
            found = measure(schedule, dtype, data, arguments.codec)
            if not number and not arguments.json:
                out(HEAD)
            row = {
                "collective": arguments.collective,
                "algorithm": name,
                "ranks": p,
                "dtype": dtype,
                "codec": arguments.codec,
            }
            most = "-" if found.bound is None else _percent(found.bound)
            shares = f"{most:>9} {_percent(found.rms):>9} {_percent(found.worst):>9}"
            text = f"{name:<28} {p:>6,} {dtype:>8} {found.depth:>6,} {shares}"
            out_row(row | found._asdict(), text, arguments.json)


def _percent(share: float) -> str:
    """Return a share in per cent, or as a power of ten if three decimals would show none of its digits."""
    return f"{share:.3%}" if share == 0 or share >= 1e-4 else f"{share:.1e}"


BENCH = Verb(_bench_arguments, _bench)
COMPARE = Verb(_compare_arguments, _compare)
ERROR = Verb(_error_arguments, _error)
