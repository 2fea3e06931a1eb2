"""The verb ``error``: how far a collective's sums of floats are from the exact ones."""

import argparse

from collectives import units
from collectives.algorithms import build, names, takes
from collectives.cli.options import UsageError, add_json, whole, wrong_input
from collectives.cli.schedules import OPTIONS, RANKS, add_schedule, complete, limited, need_options
from collectives.cli.signals import out, out_row
from collectives.schedule import Schedule

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
HEAD = f"{'algorithm':<20} {'ranks':>6} {'dtype':>8} {'depth':>6} {'bound':>9} {'rms':>9} {'worst':>9}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be typed."""
    add_schedule(parser, units.MOST_RANKS)
    known = f"{', '.join(DTYPES)} (default bf16), or its whole name"
    parser.add_argument("--dtype", default="bf16", help=known)
    text = "of a half type: sums travel in float32 and are rounded once, at the end"
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
    for number, name in enumerate(chosen):
        found = measure(_built(arguments, name, p), dtype, data, wide=arguments.accumulate is not None)
        if not number and not arguments.json:
            out(HEAD)
        row = {"collective": arguments.collective, "algorithm": name, "ranks": p, "dtype": dtype} | found._asdict()
        shares = f"{found.bound:>9.2%} {found.rms:>9.3%} {found.worst:>9.3%}"
        out_row(row, f"{name:<20} {p:>6,} {dtype:>8} {found.depth:>6,} {shares}", arguments.json)


def _built(arguments: argparse.Namespace, name: str, p: int) -> Schedule:
    """An algorithm with the options that it takes."""
    given = {option: getattr(arguments, option) for option in OPTIONS}
    options = {option: value for option, value in given.items() if takes(arguments.collective, name, option)}
    return build(arguments.collective, name, p, **options)
