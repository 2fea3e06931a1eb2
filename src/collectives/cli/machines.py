"""The verbs about machines: ``simulate``, ``bound``, ``cluster``, ``calibrate``, ``backends``."""

import argparse
import sys
from collections import Counter
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from collectives import units
from collectives.cli import TIMEOUT, Verb, add_json, out, out_row, seconds, size, whole
from collectives.cli.fastest import print_fastest
from collectives.cli.schedules import RANKS, add_schedule, complete, limited, save
from collectives.core.bounds import busbw
from collectives.core.contracts import REDUCING
from collectives.core.schedule import Schedule
from collectives.files import check_new_or_file
from collectives.units import duration, format_bytes

if TYPE_CHECKING:
    from collectives.machine import Machine
    from collectives.nccl.gpus import Environments
    from collectives.simulator.scaling import Case

SIZES = ("8", "64K", "64M")
AFTER_BOUND = """\
The bound counts bytes on links and leaves out latencies. Of an all-reduce there are two: one where ranks add, and one
where switches do, which `simulate` has as in_network and nvls_tree. Network ports of nodes that a machine file calls
`slower` have so much less."""
AFTER_CLUSTER = """\
COMMAND runs once for each rank, with the variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR ...),
and the others end when one fails. A 5 us, 25 GB/s link is emulated a thousand times slower: a result in ms reads as us
on the real link. The hosts are removed when the command ends, also when it is killed."""


def _simulate_arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser, units.MAX_RANKS)
    parser.add_argument(
        "--machine",
        default="textbook",
        help="a preset, mesh:5x5, or your own NAME.yaml (default textbook)",
    )
    default, shown = [size(text) for text in SIZES], " ".join(SIZES)
    parser.add_argument(
        "--bytes", nargs="+", type=size, default=default, help=f"sizes (default {shown})"
    )
    parser.add_argument(
        "--best",
        action="store_true",
        help="no ALGORITHM: search for the fastest, among plans by levels and all names",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE.json",
        help="every message, for chrome://tracing or ui.perfetto.dev",
    )
    add_json(parser)


def _simulate(arguments: argparse.Namespace) -> None:
    """Print a row for each size, and write a trace of it if asked to."""
    from collectives.autotune import MAX_SIMULATED
    from collectives.machine import machine
    from collectives.simulator.scaling import Case, line, row, schedule
    from collectives.simulator.trace import trace

    if arguments.best:
        print_fastest(arguments)
        return
    with limited(arguments, [arguments.collective, arguments.algorithm]):
        complete(arguments)
        names, on = (arguments.collective, arguments.algorithm), machine(arguments.machine)
        p = arguments.ranks or (on.ranks_per_node if on.links else RANKS)
        if arguments.trace:
            check_new_or_file(arguments.trace)
            if len(arguments.bytes) > 1:
                raise ValueError("a trace shows one size: give one with --bytes")
        for nbytes in arguments.bytes:
            case = Case(*names, p, nbytes, on, arguments.segments, arguments.root)
            made = row(case)
            out_row(made, line(made), arguments.json)
            if arguments.trace:
                trace(
                    arguments.trace,
                    schedule(case._replace(segments=made["segments"])),
                    on,
                    nbytes,
                    case.algorithm,
                )
                print(
                    f"{arguments.trace}: open it in ui.perfetto.dev or chrome://tracing",
                    file=sys.stderr,
                )
        if p <= MAX_SIMULATED:
            _compare(case, made["seconds"])


def _compare(case: "Case", seconds: float) -> None:
    """Print on standard error how many ports of a node an algorithm leaves idle, and which one is the fastest."""
    from collectives.autotune import choose
    from collectives.simulator.scaling import schedule

    used, ports = _ports(schedule(case._replace(segments=1)), case.machine), case.machine.ports
    if not 0 < used < ports:
        return
    text = (
        f"collectives: {case.algorithm} sends through {used} of the {ports} network ports of a node"
    )
    best = choose(case.collective, case.ranks, case.bytes, on=case.machine)
    if best.seconds and best.seconds < seconds:
        rate = busbw(case.collective, case.ranks, case.bytes, best.seconds)
        text += f"; the fastest, {best.algorithm}, takes {duration(best.seconds)}, busbw {rate:.3g} GB/s"
    print(text, file=sys.stderr)


def _ports(of: Schedule, on: "Machine") -> int:
    """Return how many network ports the ranks of a node send through, of the node that uses most."""
    g, used = on.ranks_per_node, set[int]()
    for step in of.steps():
        sender = step.src[step.src // g != step.dst // g]
        used.update((sender // g * on.ports + sender % g * on.ports // g).tolist())
    return max(Counter(port // on.ports for port in used).values(), default=0)


def _bound_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = AFTER_BOUND
    parser.add_argument(
        "collective", help="all_gather, reduce_scatter, all_reduce, broadcast, reduce or all_to_all"
    )
    machines = (
        "a preset, mesh:5x5, torus:4x4x4, or your own NAME.yaml; without links its ports count"
    )
    parser.add_argument("--machine", required=True, help=machines)
    ranks = f"ranks (default: those of one node, or {RANKS} nodes of one)"
    parser.add_argument("-p", "--ranks", type=whole(units.MAX_RANKS), help=ranks)
    parser.add_argument(
        "--root", type=whole(least=0), default=0, help="of a broadcast or reduce (default 0)"
    )
    parser.add_argument(
        "--svg", metavar="NAME", help="draw the links and the cut: NAME-light.svg, NAME-dark.svg"
    )
    add_json(parser)


def _bound(arguments: argparse.Namespace) -> None:
    """Print one row, and draw the cut if asked to."""
    from collectives.machine import machine
    from collectives.topology.bound import bound, switch_algbw
    from collectives.topology.graph import graph, graph_of_ports

    on = machine(arguments.machine)
    p = arguments.ranks or (on.ranks_per_node if on.ranks_per_node > 1 else RANKS)
    found = bound(
        arguments.collective, graph(on, p) if on.links else graph_of_ports(on, p), arguments.root
    )
    if arguments.svg:
        from collectives.figures.links import cut

        save(cut(on, found), Path(arguments.svg))
    switch = switch_algbw(found.graph) if found.collective == "all_reduce" else found.algbw
    row = {
        "collective": found.collective,
        "machine": found.graph.name,
        "ranks": found.graph.p,
        "per_shard": str(found.per_shard),
        "unit_gbs": float(found.graph.unit / 10**9),
        "algbw": round(float(found.algbw / 10**9), 6),
        "algbw_exact": str(found.algbw / 10**9),
        "switch_algbw": round(float(switch / 10**9), 6),
        "cut": list(found.cut),
        "cut_links": found.links,
        "cut_shards": found.shards,
    }
    out_row(row, _bound_line(row), arguments.json)


def _bound_line(row: dict[str, Any]) -> str:
    exact = "" if "/" not in row["algbw_exact"] else f" ({row['algbw_exact']})"
    p, links = row["ranks"], " if ranks add" if row["collective"] in REDUCING else ""
    if row["collective"] == "all_reduce":
        links += f", {row['switch_algbw']:.2f} GB/s if switches add"
    first = (
        f"{row['collective']} on {p} ranks of {row['machine']}: algbw at most {row['algbw']:.2f} GB/s{exact}{links}; "
        f"{row['per_shard']} times what 1/{p} of the buffer takes at {row['unit_gbs']:g} GB/s"
    )
    if not row["cut"]:
        return first
    ranks, switches = [v for v in row["cut"] if v < p], [v for v in row["cut"] if v >= p]
    inside = f"ranks {units.runs(ranks)}" + (
        f" and switches {units.runs(switches)}" if switches else ""
    )
    verb = "enter" if row["collective"].startswith("reduce") else "leave"
    rate = row["cut_links"] * row["unit_gbs"]
    return f"{first}\nthe cut: {row['cut_shards']} parts {verb} {inside} through links of {rate:g} GB/s in all"


def _cluster_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = AFTER_CLUSTER
    parser.add_argument("--hosts", type=whole(least=0), default=8, help="1 to 254 (default 8)")
    parser.add_argument("--latency", default="5ms", help="one way, from host to host (default 5ms)")
    parser.add_argument(
        "--rate", default="25MB/s", help="of each host's link, in each direction (default 25MB/s)"
    )
    parser.add_argument(
        "--ranks-per-host",
        type=whole(least=0),
        default=1,
        help="how often COMMAND runs on a host (default 1)",
    )
    parser.add_argument(
        "--racks",
        type=whole(least=0),
        default=1,
        help="groups of neighbours that share an uplink (default 1)",
    )
    parser.add_argument(
        "--uplink", help="rate of a rack's uplink; a message over it pays the latency once more"
    )
    text = "hosts share the GPUs of this machine, by MPS (default: if it has GPUs)"
    parser.add_argument("--share-gpus", action=argparse.BooleanOptionalAction, help=text)
    parser.add_argument(
        "--timeout", type=seconds, default=3600, help="seconds for COMMAND (default 3600)"
    )
    parser.add_argument(
        "--check", action="store_true", help="measure round trip, rate, all to one and all pairs"
    )
    parser.add_argument("words", nargs="*", metavar="-- COMMAND", help="what runs on the hosts")
    add_json(parser)


def _cluster(arguments: argparse.Namespace) -> int:
    """Return the exit code of the command, or print a row for each measurement of a check."""
    from collectives.emulator import check_hosts, cluster
    from collectives.emulator.check import HEADING, check, line

    if arguments.check == bool(arguments.words):
        raise ValueError("cluster takes either --check or -- COMMAND")
    if arguments.check and (arguments.hosts < 2 or arguments.racks > 1):
        raise ValueError(
            f"--check: got {arguments.hosts} hosts in {arguments.racks} racks, expected two or more in one"
        )
    check_hosts(arguments.hosts, arguments.ranks_per_host)
    network = {"racks": arguments.racks, "uplink": arguments.uplink}
    with ExitStack() as stack:
        shared = _shared_gpus(arguments, stack)
        made = cluster(
            arguments.hosts, arguments.latency, arguments.rate, isolated=not shared, **network
        )
        hosts = stack.enter_context(made)
        if not arguments.check:
            how = {"ranks_per_host": arguments.ranks_per_host, "timeout": arguments.timeout}
            how |= {"environment": shared.common, "own": shared.own} if shared else {}
            return hosts.run(arguments.words, **how)
        if not arguments.json:
            out(HEADING)
        latency = units.parse_seconds(arguments.latency)
        check(hosts, latency, lambda row: out_row(row, line(row), arguments.json))
    return 0


def _shared_gpus(arguments: argparse.Namespace, stack: ExitStack) -> "Environments | None":
    """Share GPUs among the hosts' ranks until the stack ends.

    Return the ranks' variables, or None without GPUs.

    A command may need no GPU: where sharing is not asked for, what forbids it is only printed.
    """
    from collectives.emulator import name
    from collectives.emulator.hosts import INTERFACE
    from collectives.nccl import gpus

    asked, each = arguments.share_gpus, arguments.ranks_per_host
    if arguments.check or asked is False or not (asked or gpus.visible()):
        return None
    link = units.parse_seconds(arguments.latency), units.parse_rate(arguments.rate)
    try:
        names = [name(rank // each) for rank in range(arguments.hosts * each)]
        return stack.enter_context(
            gpus.shared(names, INTERFACE, link if arguments.racks == 1 else None)
        )
    except ValueError as error:
        if asked:
            raise
        print(f"collectives: COMMAND cannot use NCCL: {error}", file=sys.stderr)
        return None


def _calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    ranks, repetitions = whole(units.MAX_RANKS_STARTED, 2), whole(units.MAX_REPETITIONS)
    parser.add_argument(
        "--name", default="calibrated", help="the machine's name (default calibrated)"
    )
    parser.add_argument(
        "--where", default="loopback", help="what starts the ranks (default loopback)"
    )
    parser.add_argument(
        "-p",
        "--ranks",
        type=ranks,
        default=2,
        help="the first and the last are measured (default 2)",
    )
    parser.add_argument(
        "--repetitions", type=repetitions, default=50, help="of each message (default 50)"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=TIMEOUT, help=f"seconds (default {TIMEOUT:g})"
    )
    text = "fit --machine to the all-reduces of nccl-tests in these logs; nothing is measured"
    parser.add_argument("--from", dest="logs", nargs="+", type=Path, metavar="LOG", help=text)
    text = "with --from: the machine to begin with, a preset or a file written from a data sheet"
    parser.add_argument("--machine", help=text)


def _calibrate(arguments: argparse.Namespace) -> None:
    """Print the machine file, and on standard error what it was fitted to."""
    if bool(arguments.logs) != bool(arguments.machine):
        raise ValueError(
            "calibrate: got one of --from and --machine, expected both to fit logs, or neither"
        )
    if arguments.logs:
        _fit(arguments)
    else:
        _measure(arguments)


def _fit(arguments: argparse.Namespace) -> None:
    """Print the machine that is fitted to logs, and the errors of its rows."""
    from collectives.bench.fitting import CONSTANTS, SECONDS, fit, predicted, rows_of
    from collectives.machine import machine, text

    # Another package reads logs; like the verbs of others, it is asked for by name.
    tables_of = import_module("collectives_logs.benchmarks").tables_of
    start = machine(arguments.machine)
    rows = rows_of((table for path in arguments.logs for table in tables_of(path)), start)
    found = fit(start, rows)
    errors = []
    for row in rows:
        simulated, name = predicted(found.machine, row)
        errors.append(simulated / row.seconds - 1)
        print(
            f"{format_bytes(row.bytes):>8} on {row.nodes} x {row.ranks_per_node}: "
            f"{duration(row.seconds):>8} measured, {duration(simulated):>8} simulated by {name} "
            f"({errors[-1]:+.0%})",
            file=sys.stderr,
        )
    for name, change in found.changes.items():
        by = duration(change) if name in SECONDS else f"{change:.2f} times {start.name}'s"
        print(f"{CONSTANTS[name]}: {by}", file=sys.stderr)
    middle = f"{median(map(abs, errors)):.0%} in the median"
    print(f"The fit is off by {middle}, {max(map(abs, errors)):.0%} at most.", file=sys.stderr)
    names = ", ".join(path.name for path in arguments.logs)
    fields = {"name": arguments.name, "source": f"{start.name}, fitted to {names}"}
    out(text(found.machine.model_copy(update=fields)).rstrip("\n"))


def _measure(arguments: argparse.Namespace) -> None:
    """Measure messages between ranks and print the machine, a link."""
    from collectives.bench.calibration import SIZES, deviations, machine_of, measured, trust
    from collectives.machine import text

    rows = measured(
        arguments.where, arguments.ranks, SIZES, arguments.repetitions, arguments.timeout
    )
    made = machine_of(rows, arguments.name, arguments.where)
    deviating = deviations(rows, made.network)
    for row in deviating:
        each = duration(row["each"]) if row["each"] > 0 else "unknown"
        one_way = (
            f"{format_bytes(row['bytes']):>8} {duration(row['one_way']):>8} one way, {each:>8} each"
        )
        print(
            f"{one_way} in a burst; the fit: {duration(row['fit']):>8} ({row['off']:+.0%})",
            file=sys.stderr,
        )
    print(trust(deviating), file=sys.stderr)
    out(text(made).rstrip("\n"))


def _backends(arguments: argparse.Namespace) -> None:
    """Print a row for each back end."""
    from collectives.backends import BACKENDS, presence

    for found in map(presence, BACKENDS):
        here = (
            f"{found.version} on {found.devices}"
            if found.absent is None
            else f"absent: {found.absent}"
        )
        out_row(found._asdict(), f"{found.backend:<10}  {here}", arguments.json)


SIMULATE = Verb(_simulate_arguments, _simulate)
BOUND = Verb(_bound_arguments, _bound)
CLUSTER = Verb(_cluster_arguments, _cluster)
CALIBRATE = Verb(_calibrate_arguments, _calibrate)
BACKENDS = Verb(add_json, _backends)
