"""Predict a collective on a machine: NCCL's choice by its own formulas, our fastest schedule, and the bound.

Measured times stand beside them. A size that falls short of what is expected by more than a quarter
gets causes to check, each only where its numbers fit.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from collectives.algorithms import ALGORITHMS, candidates
from collectives.algorithms.from_file import PACKED
from collectives.autotune import MAX_SIMULATED, bound, choose
from collectives.core.bounds import busbw
from collectives.core.contracts import CONTRACTS
from collectives.errors import unknown
from collectives.machine import Machine, machine
from collectives.nccl import formulas
from collectives.processes import workers
from collectives.search import fastest_plan
from collectives.simulator.scaling import Case
from collectives.simulator.scaling import row as simulated

Row = dict[str, Any]

# The algorithm in which switches add inside nodes: NCCL's NVLS and NVLSTree.
SWITCHES = "nvls_tree"

# Beyond, the closed forms themselves take minutes.
MAX_RANKS = 4096

# So few sizes are searched in this process: workers begin no sooner than these are done.
FEW = 3

# A measured rate below this share of the expected one is marked.
SHORT = 0.75
# A switch that adds halves at most what a port sends, so that no time is below half of the bound.
LEAST_OF_BOUND = 0.5
# And nothing that runs at all is slower by so much: its unit is another.
UNIT = 1 / 200
# Two times are alike if they differ by no more than this share, rates of ports and halves if by no
# more than these. What passes a link twice was 0.41 of the rate in NVIDIA/nccl-tests issue 112.
ALIKE, ALIKE_PORTS, ALIKE_HALF = 0.15, 0.12, 0.2
# A port behind a PCIe slot of 16 lanes, in GB/s: Gen3 and Gen4 (PCI_BW in NCCL's topo.h; twice it).
SLOTS = (12.0, 24.0)

CHECKS = {
    "unit": "No link explains this time. Look whether times are microseconds, sizes bytes of the whole "
    "buffer, and whether the log is of this collective, of this machine and of as many ranks.",
    "latency": "Latency decides at this size, and nccl-tests counts the launch of the kernel, which "
    "NCCL's column has not. In public tables 8 B on two nodes took 16 µs on 4 H100 by InfiniBand, 35 on "
    "16 A100 by RoCE, and 72 to 163 by EFA. Measure with -G 10, so that a CUDA graph launches; then "
    "look for NET/Socket in NCCL_DEBUG=INFO.",
    "switch": "The time is that of a ring or tree: the switch does not add. Look for NVLS in "
    "NCCL_DEBUG=INFO and for NCCL_NVLS_ENABLE=0; the fabric manager has to run. Nodes of H100 "
    "reached 330 GB/s without it and 430 with it (NVIDIA/nccl issue 1221).",
    "half": "The rate is half of what is expected, as if bytes passed a link twice. Look whether "
    "NCCL_DEBUG=INFO says GDRDMA for each port, and whether PCIe's access control (ACS) is on, which "
    "sends them through the processor (NVIDIA/nccl-tests issue 112); or half of the ports are used.",
    "ports": "The rate is that of a few ports of each node. Compare NCCL_IB_HCA and the ports that "
    "NCCL_DEBUG=INFO lists as NET/IB with those of the node, and look for one that is down (ibstat).",
    "slot": "Each port has the rate of an older or narrower PCIe slot: 12 GB/s for 16 lanes of Gen3, "
    "24 for Gen4. Look at LnkSta in `lspci -vv`, and at what ib_write_bw reaches from GPU memory.",
    "protocol": "The time is that of another protocol or algorithm than the formulas take here. Look "
    "for NCCL_ALGO, NCCL_PROTO and a tuner in the environment; LL128 is off where a GPU reaches its "
    "port through the processor (tuning.cc of NCCL 2.30.7).",
    "dip": "The rate falls though the size grows, as where a protocol or algorithm changes. Measure "
    "the sizes around with NCCL_PROTO=LL, LL128 and Simple; `collectives read` names such dips.",
    "unknown": "The numbers fit no cause that is known here. Read the log of NCCL_DEBUG=INFO with "
    "`collectives read`, and measure each pair of nodes alone to find a slow one.",
}


class Expected(NamedTuple):
    """Ask for a collective on so many nodes of a machine, of which so many GPUs each take part."""

    collective: str
    named: str  # the machine, as it was asked for
    machine: Machine  # with these GPUs of each node alone
    nodes: int
    gpus: int
    job: formulas.Job | None  # None where NCCL chooses nothing, or its GPUs are not known
    algorithms: tuple[str, ...]  # of NCCL


def asked(
    collective: str,
    named: str,
    nodes: int,
    gpus: int | None = None,
    generation: str | None = None,
    algorithms: Sequence[str] | None = None,
) -> Expected:
    """Return what is asked, checked; ``gpus`` a node and NCCL's ``algorithms`` are all if left out.

    ``named`` is a machine as `collectives.machine.machine` takes it, and ``generation`` of the GPUs
    that which its name tells, if left out. Raises ValueError for an unknown machine, one rank, more
    ranks than are searched for, GPUs that the nodes do not have or whose ports cannot be shared
    out, and algorithms that NCCL lacks there.

    >>> asked("all_reduce", "dgx-h100", 2, 4).machine.ports
    4
    """
    on = machine(named)
    if collective not in CONTRACTS:
        raise ValueError(unknown("collective", collective, CONTRACTS))
    gpus = gpus or on.ranks_per_node
    ranks = nodes * gpus
    if gpus > on.ranks_per_node:
        raise ValueError(
            f"GPUs of a node of {on.name}: got {gpus}, expected at most {on.ranks_per_node}"
        )
    if ranks < 2:
        raise ValueError(f"ranks: got {ranks}, expected 2 or more, because one alone sends nothing")
    if ranks > MAX_RANKS:
        raise ValueError(f"ranks: got {ranks:,}, expected at most {MAX_RANKS:,}")
    if on.links and ranks > on.ranks_per_node:
        raise ValueError(f"nodes of {on.name}: got {nodes}, expected 1, whose links are known")
    part = on if gpus == on.ranks_per_node else _part(on, gpus)
    name = generation or formulas.generation_of(on.name)
    job = None
    if name and collective in formulas.ALGORITHMS and not on.links:
        inside, network = part.inside or part.network, part.network
        job = formulas.job(
            collective, nodes, gpus, name, inside.rate / 1e9, part.ports, network.rate / 1e9
        )
    if job is None and algorithms:
        given = " ".join(algorithms)
        raise ValueError(
            f"algorithms of NCCL: got {given}, expected none: {why_not(collective, part)}"
        )
    taken = _algorithms(job, algorithms) if job else ()
    return Expected(collective, named, part, nodes, gpus, job, taken)


def _part(on: Machine, gpus: int) -> Machine:
    """Return the machine of nodes of which only some GPUs take part, with their share of the ports, at least one."""
    ports = max(1, on.ports * gpus // on.ranks_per_node)
    if on.links:
        return on
    if gpus % ports:
        raise ValueError(
            f"GPUs of a node of {on.name}: got {gpus} for {ports} of its {on.ports} ports, "
            "expected a multiple of the ports"
        )
    return on.model_copy(update={"ranks_per_node": gpus, "ports_per_node": ports})


def _algorithms(job: formulas.Job, given: Sequence[str] | None) -> tuple[str, ...]:
    known = formulas.ALGORITHMS[job.collective]
    for name in given or ():
        if name not in known:
            raise ValueError(unknown(f"algorithm of NCCL for {job.collective}", name, known))
        if name == "nvls_tree" and job.nodes == 1:
            raise ValueError("algorithm nvls_tree of NCCL: got 1 node, expected several")
        if name.startswith("nvls") and job.switches is None:
            raise ValueError(
                f"algorithm {name} of NCCL: got nodes without a switch that adds, "
                "expected Hopper or Blackwell, and several GPUs and ports a node"
            )
    return tuple(given or formulas.default_algorithms(job))


def why_not(collective: str, on: Machine) -> str:
    """Return why there is no column of NCCL for a collective on a machine whose generation is not told.

    >>> why_not("all_to_all", machine("dgx-h100"))
    'NCCL makes all_to_all of sends and receives, and chooses nothing'
    """
    if collective not in formulas.ALGORITHMS:
        return f"NCCL makes {collective} of sends and receives, and chooses nothing"
    if on.links:
        return "its formulas do not know links one by one"
    return f"the name {on.name} tells no generation of GPUs (--generation)"


def rows(what: Expected, sizes: Sequence[int], measured: Mapping[int, float]) -> Iterator[Row]:
    """Yield a row for each size, in bytes as nccl-tests counts them; ``measured`` has seconds by size.

    Sizes are searched on all cores. See `expected_row` for the fields; with measured times there
    are ``measured_seconds``, ``measured_busbw``, its ``share`` of what is expected, and ``checks``
    (see `causes`).
    """
    before = 0.0
    for row in _on_all_cores(what, sizes):
        seconds = measured.get(row["bytes"])
        if seconds:
            rate = busbw(what.collective, row["ranks"], row["bytes"], seconds)
            expected = row["nccl_seconds"] or row["seconds"]
            share = expected / seconds
            row |= {"measured_seconds": seconds, "measured_busbw": rate, "share": share}
            row["checks"] = causes(what, row, before)
            before = rate
        yield row


def _on_all_cores(what: Expected, sizes: Sequence[int]) -> Iterator[Row]:
    if len(sizes) <= FEW:
        yield from map(partial(expected_row, what), sizes)
        return
    with workers() as pool:
        yield from pool.map(partial(expected_row, what), sizes)


def expected_row(what: Expected, nbytes: int) -> Row:
    """Return the row of a size: seconds and GB/s of NCCL's choice and of our fastest schedule, and the bound.

    Fields of NCCL are None where it has no formula. The fastest schedule has the cost of a call, if
    the machine's file has one; with ``switches_add`` it is `nvls_tree`, which NCCL runs and ranks
    cannot. ``limit`` says what the fastest schedule waits for most: latency, or the link that is
    busy longer than half of its time.

    >>> row = expected_row(asked("all_reduce", "dgx-h100", 1), 1 << 30)
    >>> row["nccl_algorithm"], round(row["nccl_busbw"]), row["limit"]
    ('nvls', 473, 'inside port')
    """
    collective, on = what.collective, what.machine
    ranks = what.nodes * what.gpus
    where = {
        "collective": collective,
        "machine": on.name,
        "nodes": what.nodes,
        "gpus": what.gpus,
        "ranks": ranks,
        "bytes": nbytes,
    }
    ours = _fastest(what, nbytes)
    switched = _by_switches(what, nbytes)
    is_switched = switched is not None and switched["seconds"] < ours["seconds"]
    if switched is not None and is_switched:
        ours = switched
    link, busy = ours["busiest_link"], ours["busy_seconds"]
    fastest = {name: ours[name] for name in ("algorithm", "segments", "seconds", "busbw")}
    fastest["switches_add"] = is_switched
    limits = {
        "bound": bound(on, collective, ranks, nbytes),
        "limit": _kind(link) if busy > ours["seconds"] / 2 else "latency",
        "busiest_link": link,
        "busy_seconds": busy,
    }
    return where | _of_nccl(what, nbytes) | fastest | limits


def _kind(link: str) -> str:
    """Return the kind of a link that a simulation names.

    >>> _kind("inside port of rank 3, sending"), _kind("network port 0, outward"), _kind("link from rank 1 to rank 2")
    ('inside port', 'network port', 'link')
    """
    return link.partition(" of ")[0].partition(" from ")[0].partition(",")[0].rstrip(" 0123456789")


def _of_nccl(what: Expected, nbytes: int) -> Row:
    if what.job is None:
        names = ("version", "busbw", "algorithm", "protocol", "channels", "seconds", "latency")
        return {f"nccl_{name}": None for name in names}
    choice = formulas.predictions(what.job, nbytes, list(what.algorithms))[0]
    rate = busbw(what.collective, what.job.ranks, nbytes, choice.seconds)
    of_choice = {f"nccl_{name}": value for name, value in choice._asdict().items()}
    return {"nccl_version": formulas.VERSION, "nccl_busbw": rate} | of_choice


def _fastest(what: Expected, nbytes: int) -> Row:
    """Return the simulated row of the fastest schedule: beyond `MAX_SIMULATED` ranks among plans by levels alone.

    "auto" goes by formulas where links are known one by one; here all names are simulated there,
    and trees that are packed into the links.
    """
    collective, on, ranks = what.collective, what.machine, what.nodes * what.gpus
    case = Case(collective, "ring", ranks, nbytes, on)
    if on.links:
        names = candidates(collective)
        if collective in formulas.ALGORITHMS:
            names.append(f"{PACKED}@{what.named}")
        cases = [case._replace(algorithm=name) for name in names]
        return min(map(simulated, cases), key=lambda row: row["seconds"])
    if ranks <= MAX_SIMULATED:
        algorithm, segments, _ = choose(collective, ranks, nbytes, on=on)
        return simulated(case._replace(algorithm=algorithm, segments=segments))
    found = fastest_plan(collective, ranks, nbytes, on)
    if found is None:
        raise ValueError(
            f"ranks of {collective} on {on.name}: got {ranks:,}, expected at most {MAX_SIMULATED}"
        )
    return simulated(case._replace(algorithm=str(found.plan), segments=1))


def _by_switches(what: Expected, nbytes: int) -> Row | None:
    """Return the simulated row of switches that add inside nodes, None if the machine has none or too many ranks."""
    is_known = (what.collective, SWITCHES) in ALGORITHMS
    ranks = what.nodes * what.gpus
    if not (what.machine.has_adding_switches and is_known and what.gpus > 1):
        return None
    if ranks > MAX_SIMULATED:
        return None
    return simulated(Case(what.collective, SWITCHES, ranks, nbytes, what.machine))


def causes(what: Expected, row: Row, before: float) -> list[str]:
    """Return the names of `CHECKS` whose numbers fit a measured row, the likeliest first.

    There are none if the row does not fall short. ``before`` is the measured busbw of the size before, 0 for none.
    """
    seconds, share = row["measured_seconds"], row["share"]
    if seconds < LEAST_OF_BOUND * row["bound"] or share < UNIT:
        return ["unit"]
    return list(_causes(what, row, before)) or ["unknown"] if share < SHORT else []


def _causes(what: Expected, row: Row, before: float) -> Iterator[str]:
    seconds, share = row["measured_seconds"], row["share"]
    latency = row["nccl_latency"] or row["seconds"] - row["busy_seconds"]
    if latency > (row["nccl_seconds"] or row["seconds"]) / 2:
        yield "latency"
        return
    others = _other_predictions(what, row)
    is_switch = str(row["nccl_algorithm"]).startswith("nvls")
    without = [each.seconds for each in others if not each.algorithm.startswith("nvls")]
    if is_switch and without and _alike(seconds, min(without), ALIKE):
        yield "switch"
    if what.nodes > 1:
        yield from _causes_of_network(what, row["measured_busbw"], share)
    if not is_switch and any(_alike(seconds, each.seconds, ALIKE) for each in others):
        yield "protocol"
    if row["measured_busbw"] < (1 - ALIKE) * before:
        yield "dip"


def _other_predictions(what: Expected, row: Row) -> list[formulas.Prediction]:
    if what.job is None:
        return []
    return formulas.predictions(what.job, row["bytes"], list(what.algorithms))[1:]


def _causes_of_network(what: Expected, rate: float, share: float) -> Iterator[str]:
    ports, port = what.machine.ports, what.machine.network.rate / 1e9
    full = share * ports  # so many ports at their full rate
    is_half_a_port = ports > 1 and _alike(full, 0.5, ALIKE_HALF)
    if is_half_a_port or _alike(share, 0.5, ALIKE_HALF):
        yield "half"
    used = round(full)
    is_telling = 1 <= used <= ports / 2 or 1 <= used < ports <= 4
    if is_half_a_port or (is_telling and _alike(full, used, ALIKE_PORTS)):
        yield "ports"
    if any(slot < SHORT * port and _alike(rate / ports, slot, ALIKE_PORTS) for slot in SLOTS):
        yield "slot"


def _alike(one: float, other: float, most: float) -> bool:
    return abs(one / other - 1) <= most
