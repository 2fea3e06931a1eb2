"""The choice of "auto": the algorithm and number of segments with the shortest predicted time on a machine.

On a preset, and on a machine with nodes or protocols, candidates are simulated, up to
`MAX_SIMULATED` ranks: the plans by levels that `search` finds, and every named algorithm that may
be as fast. On links alone, named or measured between ranks, the prediction is the closed
form in alpha and beta: the simulator leaves out the processors that send the messages. Where one
rank alone sends or receives, and in a segmented ring, latency counts apart from overhead there. Of
equal predictions the first in the table counts, so equal arguments give an equal choice on every
rank.

The machine is the one that the environment variable COLLECTIVES_MACHINE names on rank 0, a preset
or a file; `collectives calibrate` writes the file of the machine it runs on. Where it names none,
CPU ranks measure the links of a group when they first use it, unless they know them from an earlier
group (`engine.probe`). All others go by `DEFAULT`.

A call whose candidates are simulated takes the choice for the power of two that is nearest to its
bytes. So a program of many sizes simulates once for each power of two, however many groups it has.
"""

import math
import os
from functools import cache, lru_cache
from typing import NamedTuple

from collectives.algorithms import ALGORITHMS, Algorithm, candidates
from collectives.core.bounds import default_node, lower_bound, star_seconds
from collectives.core.contracts import CONTRACTS
from collectives.machine import Link, Machine, machine, presets
from collectives.renamed import current_name

VARIABLE = "COLLECTIVES_MACHINE"

# The preset that counts where no machine is named and none can be measured: TCP between nodes.
DEFAULT = "ethernet"

PRESETS = frozenset(presets())

# The name of a machine whose links the ranks have measured.
MEASURED = "measured"

# The all-to-alls in which each piece goes straight from its sender to its receiver, the only two
# ranks that know its size where splits are given. A rank's own splits say nothing of the others',
# so the choice must not depend on them.
STRAIGHT = tuple(name for (_, name), each in ALGORITHMS.items() if each.splits)

# An algorithm without a closed form cuts its buffer into segments of about this size, but never
# into more than MAX_SEGMENTS.
SEGMENT_BYTES, MAX_SEGMENTS = 1 << 20, 64

# Segments of an algorithm that overlaps latencies, as a segmented ring: while one is on its way the
# other is sent. More would only help where latencies are longer than that, and there a ring is not
# the best.
OVERLAPPING_SEGMENTS = 2

# Up to so many ranks a choice takes a second of simulations at most, and 0.1 to 0.4 s on 64 ranks;
# beyond, formulas do.
MAX_SIMULATED = 256

# Choices that are kept, one for each collective, number of ranks, class of sizes, algorithm and
# machine.
MOST_CHOICES = 4096

# What a message costs a rank of ours at least, sent or received: a warm call with one each way took
# 55 us. A rank with many of them is busy all that time, also on links whose own overhead is less.
OVERHEAD = 30e-6


class Choice(NamedTuple):
    """An algorithm, how many segments it cuts its chunks into, and the predicted seconds if it has a closed form."""

    algorithm: str
    segments: int
    seconds: float | None = None


def choose(
    collective: str,
    p: int,
    nbytes: int,
    algorithm: str = "auto",
    segments: int | None = None,
    on: Machine | None = None,
    splits: bool = False,
) -> Choice:
    """Choose the algorithm and segments for ``nbytes`` bytes on p ranks.

    A value other than "auto" or None stays.

    With ``splits`` (an all-to-all whose pieces differ) ``nbytes`` may differ from rank to rank, and
    does not count.

    >>> from collectives.machine import machine
    >>> [choose("all_reduce", 32, nbytes, on=machine("textbook")).algorithm for nbytes in (4, 1 << 20)]
    ['recursive_doubling', 'bruck8/recursive_doubling4']
    >>> choose("all_reduce", 32, 1 << 20, "two_tree", on=machine("textbook")).segments
    4
    >>> choose("all_reduce", 8, 1 << 20) == choose("all_reduce", 8, 1 << 20, on=machine(DEFAULT))
    True
    >>> [choose("all_to_all", 4, 8, splits=splits).algorithm for splits in (False, True)]
    ['direct', 'direct']
    """
    on, nbytes = on or named_machine(DEFAULT), 0 if splits else nbytes
    names = candidates(collective, splits) if algorithm == "auto" else [current_name(algorithm)]
    if nbytes and _is_simulated(on, p) and (collective, names[0]) in ALGORITHMS:
        return _fastest_simulated(collective, names, p, nbytes, segments, on)
    predicted = [_predicted(collective, name, p, nbytes, segments, on) for name in names]
    return min(predicted, key=lambda each: (each.seconds is None, _rounded(each.seconds or 0.0)))


def _fastest_simulated(
    collective: str, names: list[str], p: int, nbytes: int, segments: int | None, on: Machine
) -> Choice:
    """Return the fastest of these algorithms, and of the plans by levels where all algorithms are asked for.

    An algorithm whose closed form, without latencies and with the best links, is longer than the
    fastest one so far is not simulated. Of equal times an algorithm counts before a plan.
    """
    plan = None
    if len(names) > 1 and segments is None:
        plan = _fastest_plan(collective, p, nbytes, on)
    least = math.inf if plan is None or plan.seconds is None else plan.seconds
    choices = []
    for name in names:
        # Rounded, because the form of the fastest itself may differ in the last digits.
        if _rounded(_least_seconds(collective, name, p, nbytes, on)) <= _rounded(least):
            choice = _simulated(collective, name, p, nbytes, segments, on)
            choices.append(choice)
            least = min(least, choice.seconds or 0.0)
    if plan is not None:
        choices.append(plan)
    return min(choices, key=lambda choice: _rounded(choice.seconds or 0.0))


def _fastest_plan(collective: str, p: int, nbytes: int, on: Machine) -> Choice | None:
    from collectives.search import fastest_plan  # needs numba

    found = fastest_plan(collective, p, nbytes, on)
    return Choice(str(found.plan), 1, found.simulation.seconds) if found else None


def _least_seconds(collective: str, name: str, p: int, nbytes: int, on: Machine) -> float:
    """Return seconds that an algorithm takes at least: overheads and bytes of its busiest port, by the best links.

    Nothing is known of an algorithm that pipelines segments or counts links inside nodes apart, and
    of a buffer of fewer bytes than ranks, because empty parts are not sent.
    """
    known, link = ALGORITHMS[collective, name], _best_link(on, p)
    if known.cost is None or known.pipeline or known.inside or nbytes < p:
        return 0.0
    return known.cost(p).seconds(nbytes, link.overhead, link.beta)


def choose_for_call(
    collective: str,
    p: int,
    nbytes: int,
    algorithm: str = "auto",
    segments: int | None = None,
    encoded: bytes = b"",
    splits: bool = False,
) -> Choice:
    """Choose as `choose` does on an `encode_machine` machine.

    Where it simulates, once for all sizes of one class.

    The class is the nearest power of two, so a size is at most sqrt(2) times larger or smaller than
    the one that is simulated; ``seconds`` are those of the class. Up to `MOST_CHOICES` are kept for
    the process.

    >>> from collectives.machine import machine
    >>> on = machine("dgx-h100")
    >>> call = choose_for_call("all_reduce", 4, 1000, encoded=on.model_dump_json().encode())
    >>> call == choose("all_reduce", 4, 1024, on=on)
    True
    """
    on = decode_machine(encoded) or named_machine(DEFAULT)
    if splits or not nbytes or not _is_simulated(on, p):
        return choose(collective, p, nbytes, algorithm, segments, on, splits)
    return _choose_for_class(collective, p, size_class(nbytes), algorithm, segments, encoded)


def size_class(nbytes: int) -> int:
    """Return the power of two that is nearest to a number of bytes, by their ratio.

    >>> [size_class(nbytes) for nbytes in (1, 2, 3, 5, 6, 90, 91, 1 << 30)]
    [1, 2, 4, 4, 8, 64, 128, 1073741824]
    """
    return 1 << round(math.log2(nbytes))


@lru_cache(maxsize=MOST_CHOICES)
def _choose_for_class(
    collective: str, p: int, nbytes: int, algorithm: str, segments: int | None, encoded: bytes
) -> Choice:
    return choose(collective, p, nbytes, algorithm, segments, decode_machine(encoded))


def _is_simulated(on: Machine, p: int) -> bool:
    """Tell if the simulator knows a machine better than formulas in one alpha and one beta do."""
    fits = p <= on.ranks_per_node or p % on.ranks_per_node == 0
    is_detailed = on.protocols or on.inside or on.name in PRESETS
    can_be_simulated = not on.links and 1 < p <= MAX_SIMULATED
    return bool(fits and is_detailed and can_be_simulated) and on.name != MEASURED


def _simulated(
    collective: str, name: str, p: int, nbytes: int, segments: int | None, on: Machine
) -> Choice:
    """Return the choice of one algorithm with its simulated seconds, in the best of 1, 2, 4, … segments unless told."""
    from collectives.simulator.scaling import Case, segmented  # needs numba

    cut, result = segmented(Case(collective, name, p, nbytes, on, segments))
    return Choice(name, cut, result.seconds)


def _rounded(seconds: float) -> float:
    """Round off the last digits, in which two formulas of one value may differ."""
    return float(f"{seconds:.12g}")


def _predicted(
    collective: str, name: str, p: int, nbytes: int, segments: int | None, on: Machine
) -> Choice:
    """Return one algorithm in its best segments with the seconds of its closed form, None if it has none."""
    known, link = ALGORITHMS.get((collective, name)), slowest_link(on, p)
    alpha, beta = link.alpha, link.beta
    if known is None:
        pass
    elif known.seconds:
        cut = segments or OVERLAPPING_SEGMENTS
        return Choice(name, cut, known.seconds(p, nbytes, cut, link.latency, link.overhead, beta))
    elif known.latencies and known.cost:
        overhead = max(link.overhead, OVERHEAD)
        return Choice(
            name,
            1,
            star_seconds(known.cost(p), known.latencies, nbytes, link.latency, overhead, beta),
        )
    elif p > 1 and known.pipeline:
        pipeline = known.pipeline(p)
        cut = segments or (pipeline.best(nbytes, alpha, beta) if alpha else MAX_SEGMENTS)
        return Choice(name, cut, pipeline.seconds(nbytes, cut, alpha, beta))
    elif known.cost:
        if known.inside:
            return Choice(name, segments or 1, _on_nodes(known, p, nbytes, on, link))
        return Choice(name, segments or 1, known.cost(p).seconds(nbytes, alpha, beta))
    return Choice(name, segments or min(MAX_SEGMENTS, max(1, nbytes // SEGMENT_BYTES)))


def _on_nodes(known: Algorithm, p: int, nbytes: int, on: Machine, link: Link) -> float:
    """Return the seconds of an algorithm for nodes.

    What stays inside takes the machine's links there, if nodes fit.
    """
    node = full_node(on, p)
    fits = on.inside and on.ranks_per_node % (node or default_node(p)) == 0
    inner = on.inside if on.inside and fits else link
    return known.on_nodes(
        p, node, nbytes, (inner.alpha, inner.beta, 0.0), (link.alpha, link.beta, 0.0)
    )


def full_node(on: Machine | None, p: int) -> int | None:
    """Return the ranks of a node if p ranks fill several nodes of several, which an algorithm for nodes is built with.

    >>> from collectives.machine import machine
    >>> [full_node(machine("summit"), p) for p in (6, 12, 16)]
    [None, 6, None]
    """
    return (
        on.ranks_per_node
        if on and 1 < on.ranks_per_node < p and p % on.ranks_per_node == 0
        else None
    )


def slowest_link(on: Machine, p: int) -> Link:
    """Return the slowest link of a machine that p ranks use."""
    return on.inside if on.inside is not None and p <= on.ranks_per_node else on.network


def bound(on: Machine, collective: str, p: int, nbytes: int) -> float:
    """Return the seconds that a collective takes at least on a machine with any algorithm (`collectives.core.bounds`).

    On several nodes of several ranks a rank may use the links of both classes at once, and a node
    has to move its bytes through its ports. A machine with protocols sends each message by the best
    of them. Where switches add, it does not apply.

    >>> from collectives.machine import machine
    >>> round(bound(machine("dgx-h100"), "all_reduce", 64, 1 << 30) * 1e3, 2)
    5.46
    """
    if on.links:
        from collectives.topology.bound import seconds  # needs scipy

        return seconds(collective, on, p, nbytes)
    best, nodes = _best_link(on, p), max(1.0, p / on.ranks_per_node)
    least = lower_bound(collective, p, nbytes, best.alpha, best.beta, on.gamma, best.latency)
    moved = CONTRACTS[collective].factor(nodes) * nbytes if nodes > 1 else 0.0
    # Each has data of its own for the other nodes.
    ranks = on.ranks_per_node if collective == "all_to_all" else 1
    return max(least, moved * ranks * on.network.beta / on.ports)


def _best_link(on: Machine, p: int) -> Link:
    """Return a link with the least delays of the links that p ranks use, by any protocol, and their rates together."""
    names = ["inside"] * (on.ranks_per_node > 1) + ["network"] * (p > on.ranks_per_node) or [
        "network"
    ]
    delays = [getattr(each, name) for each in (on, *on.protocols) for name in names]
    latency, overhead = min(each.latency for each in delays), min(each.overhead for each in delays)
    return Link(
        latency=latency, overhead=overhead, rate=sum(getattr(on, name).rate for name in names)
    )


@cache
def named_machine(name: str) -> Machine:
    """Return `collectives.machine.machine` of a name, read once.

    Raises ValueError, one line, as that does.
    """
    return machine(name)


def environment_machine() -> Machine | None:
    """Return the machine that COLLECTIVES_MACHINE names in this process, or None.

    Raises ValueError, OSError.
    """
    name = os.environ.get(VARIABLE)
    return named_machine(name) if name else None


def encode_machine() -> bytes:
    """Return the environment's machine as JSON, nothing if it names none, and "!" with the error if it fails.

    Rank 0 tells it to its group: what the other ranks' environments name, and the files they have,
    do not count.
    """
    try:
        on = environment_machine()
    except (ValueError, OSError) as error:
        return f"!{error}".encode()
    return on.model_dump_json().encode() if on else b""


@cache
def decode_machine(encoded: bytes) -> Machine | None:
    """Return the machine that `encode_machine` encoded, if any.

    Raises ValueError with rank 0's error.
    """
    if encoded.startswith(b"!"):
        raise ValueError(f"{VARIABLE} on rank 0: {encoded[1:].decode()}")
    return Machine.model_validate_json(encoded) if encoded else None
