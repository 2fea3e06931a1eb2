"""The verb ``error``: how far a collective's sums of floats are from the exact ones."""

import argparse

from collectives import units
from collectives.algorithms import build, names, takes
from collectives.cli.options import UsageError, add_json, whole, wrong_input
from collectives.cli.schedules import OPTIONS, RANKS, add_schedule, complete, limited, need_options
from collectives.cli.signals import out, out_row
from collectives.schedule import Schedule
from collectives.wire import split

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
HEAD = f"{'algorithm':<28} {'ranks':>6} {'dtype':>8} {'depth':>6} {'bound':>9} {'rms':>9} {'worst':>9}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_schedule(parser, units.MOST_RANKS)
    known = f"{', '.join(DTYPES)} (default bf16), or its whole name"
    parser.add_argument("--dtype", default="bf16", help=known)
    text = "sums travel in float32 and are rounded once, at the end: short for the wire float32, as in ring/float32"
    parser.add_argument("--accumulate", choices=["fp32"], help=text)
    parser.add_argument(
        "--data", default="normal", help="normal, positive, or NAME.npy (ranks x elements; default normal)"
    )
    parser.add_argument("--seeds", type=whole(1000), default=5, help="samples of 1,000 elements (default 5)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """A row for the algorithm, or for every one of the collective."""
    with limited(arguments, [arguments.algorithm]), wrong_input():
        _measure(arguments)


def _measure(arguments: argparse.Namespace) -> None:
    from collectives.bench.rounding import REDUCING, measure, samples

    if arguments.algorithm is not None:
        complete(arguments)
        need_options(arguments)
    if arguments.collective not in REDUCING:
        raise UsageError(f"error: got {arguments.collective}, expected one of {', '.join(REDUCING)}")
    p, dtype = arguments.ranks or RANKS, DTYPES.get(arguments.dtype, arguments.dtype)
    data = list(samples(arguments.data, p, arguments.seeds))
    chosen = [arguments.algorithm] if arguments.algorithm else names(arguments.collective)
    if arguments.accumulate and split(chosen[0])[1]:
        raise UsageError(f"--accumulate with a wire: got {chosen[0]}, expected {split(chosen[0])[0]}")
    for number, name in enumerate(f"{each}/float32" if arguments.accumulate else each for each in chosen):
        found = measure(_built(arguments, name, p), dtype, data)
        if not number and not arguments.json:
            out(HEAD)
        row = {"collective": arguments.collective, "algorithm": name, "ranks": p, "dtype": dtype} | found._asdict()
        most = "-" if found.bound is None else _share(found.bound)
        shares = f"{most:>9} {_share(found.rms):>9} {_share(found.worst):>9}"
        out_row(row, f"{name:<28} {p:>6,} {dtype:>8} {found.depth:>6,} {shares}", arguments.json)


def _share(value: float) -> str:
    """In per cent; a value that would have no digits left as a power of ten."""
    return f"{value:.3%}" if value == 0 or value >= 1e-4 else f"{value:.1e}"


def _built(arguments: argparse.Namespace, name: str, p: int) -> Schedule:
    """An algorithm with the options that it takes."""
    given = {option: getattr(arguments, option) for option in OPTIONS}
    options = {option: value for option, value in given.items() if takes(arguments.collective, name, option)}
    return build(arguments.collective, name, p, **options)
