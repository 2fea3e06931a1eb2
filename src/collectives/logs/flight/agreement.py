"""Whether the ranks of one collective call alike: the same operation, dtypes that agree, sizes that fit together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from collectives.logs.finding import MOST_NAMED, ranks
from collectives.logs.flight.dump import Entry, Shapes

# Collectives whose inputs have one size on all ranks, beside those below.
ALIKE = frozenset(
    ("all_reduce", "allreduce_coalesced", "reduce", "_reduce_oop", "broadcast", "_broadcast_oop", "sparse_all_reduce")
)
GATHERS = frozenset(
    ["all_gather", "all_gather_single", "_all_gather_base", "all_gather_into_tensor_coalesced", "all_gather_v"]
)
SCATTERS = frozenset(
    [
        "reduce_scatter",
        "reduce_scatter_single",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
        "reduce_scatter_v",
    ]
)
EXCHANGES = frozenset(("all_to_all", "all_to_all_single", "all_to_all_v_single", "all_to_allv"))


class Odd(NamedTuple):
    """What differs, of which kind, and the ranks that differ from most; all ranks where no side has more."""

    kind: str
    culprits: tuple[int, ...]
    said: str


def disagreement(calls: Mapping[int, Entry], p: int) -> Odd | None:
    """What differs between the calls of ranks in a group of p; None if they fit, or too few are there to tell.

    >>> entry = Entry("0", 1, "all_reduce", None, ((4,),), ((4,),), ("Float",), ("Float",), "started", "")
    >>> calls = {rank: entry for rank in range(3)} | {3: entry._replace(inputs=((5,),), outputs=((5,),))}
    >>> disagreement(calls, 4)
    Odd(kind='sizes', culprits=(3,), said='rank 3: 5 elements; ranks 0–2: 4')
    """
    operations = {rank: entry.operation for rank, entry in calls.items()}
    if len(set(operations.values())) > 1:
        return _odd("operation", operations)
    (operation,) = set(operations.values()) or {""}
    # On other ranks than the root a gather has no outputs, and a scatter no inputs.
    for types in ({r: e.input_types for r, e in calls.items()}, {r: e.output_types for r, e in calls.items()}):
        given = {rank: ", ".join(sorted(set(each))) for rank, each in types.items() if each}
        if len(set(given.values())) > 1:
            return _odd("dtypes", given)
    algorithms = {rank: entry.algorithm for rank, entry in calls.items() if entry.algorithm}
    if len(set(algorithms.values())) > 1:
        return _odd("algorithm", algorithms)
    if operation in ALIKE:
        return _alike({rank: entry.inputs for rank, entry in calls.items()})
    totals = {rank: (elements(entry.inputs), elements(entry.outputs)) for rank, entry in calls.items()}
    if operation in GATHERS:
        return _gather(totals, p)
    if operation in SCATTERS:
        return _gather({rank: (there, here) for rank, (here, there) in totals.items()}, p, "output", "input")
    if operation in EXCHANGES:
        return _exchange(calls, totals, p, operation)
    if operation == "gather":
        return _alike({rank: entry.inputs for rank, entry in calls.items()})
    if operation == "scatter":
        return _alike({rank: entry.outputs for rank, entry in calls.items()})
    return None


def elements(shapes: Shapes) -> int:
    """Of all tensors together."""
    return sum(math.prod(sizes) for sizes in shapes)


def _alike(shapes: Mapping[int, Shapes]) -> Odd | None:
    counts = {rank: tuple(math.prod(sizes) for sizes in each) for rank, each in shapes.items()}
    if len(set(counts.values())) < 2:
        return None
    return _odd("sizes", {rank: _counted(each) for rank, each in counts.items()}, " elements")


def _counted(counts: tuple[int, ...]) -> str:
    """The elements of each tensor; of many, their number and sum."""
    if len(counts) > MOST_NAMED:
        return f"{sum(counts)} in {len(counts)} tensors"
    return " + ".join(map(str, counts)) or "0"


def _gather(totals: Mapping[int, tuple[int, int]], p: int, part: str = "input", whole: str = "output") -> Odd | None:
    """Parts that make up a whole: (part, whole) of each rank, in elements."""
    if all(there == p * here for here, there in totals.values()) and len(set(totals.values())) < 2:
        return None
    parts = [here for here, _ in totals.values()]
    wholes = {there for _, there in totals.values()}
    is_uneven = sum(parts) == max(wholes) if len(parts) == p else len(set(parts)) > 1
    if len(wholes) == 1 and is_uneven:
        return None  # parts of different sizes make up the whole, as far as one can tell
    fit = Counter(each for each in totals.values() if each[1] == p * each[0]).most_common(2)
    told = {rank: f"{part} {here}, {whole} {there}" for rank, (here, there) in totals.items()}
    odd = _odd("sizes", told, " elements")
    if fit and (len(fit) == 1 or fit[0][1] > fit[1][1]):
        right = fit[0][0]
        return odd._replace(culprits=tuple(sorted(rank for rank, each in totals.items() if each != right)))
    return odd._replace(said=f"{odd.said}; expected {whole} = {p} × {part}")


def _exchange(calls: Mapping[int, Entry], totals: Mapping[int, tuple[int, int]], p: int, operation: str) -> Odd | None:
    """What the ranks send together they receive together; each pair, where there is a tensor for each peer."""
    if len(calls) == p and p > 1 and all(len(e.inputs) == len(e.outputs) == p for e in calls.values()):
        return _pairs(calls)
    sent, received = (sum(each) for each in zip(*totals.values(), strict=True))
    odd = _odd("sizes", {rank: f"{here} in, {there} out" for rank, (here, there) in totals.items()}, " elements")
    if len(calls) == p and sent != received:
        return odd
    # Where each rank sends as much as it receives, split sizes may fit or not be there; if it hangs, they are not.
    is_over = all(entry.state in ("completed", "ended") for entry in calls.values())
    is_even = all(here == there and here % p == 0 for here, there in totals.values())
    is_known = operation == "all_to_all_v_single"
    return odd if is_even and len(set(totals.values())) > 1 and not is_over and not is_known else None


def _pairs(calls: Mapping[int, Entry]) -> Odd | None:
    """A tensor for each peer: those of a rank to another must be as large as the other expects them."""
    order = sorted(calls)
    wrong = [
        (a, b)
        for i, a in enumerate(order)
        for j, b in enumerate(order)
        if math.prod(calls[a].inputs[j]) != math.prod(calls[b].outputs[i])
    ]
    if not wrong:
        return None
    counts = Counter(rank for pair in wrong for rank in set(pair))
    most = counts.most_common()
    culprits = tuple(sorted(rank for rank, count in most if count == most[0][1]))
    a, b = next(pair for pair in wrong if culprits[0] in pair)
    i, j = order.index(a), order.index(b)
    said = f"rank {a} sends {math.prod(calls[a].inputs[j])} elements to rank {b}, which expects "
    more = f"; {len(wrong)} pairs differ" if len(wrong) > 1 else ""
    return Odd("sizes", culprits, f"{said}{math.prod(calls[b].outputs[i])}{more}")


def _odd(kind: str, values: Mapping[int, Hashable], unit: str = "") -> Odd:
    """The fewest first; the ranks that differ from most."""
    sides: dict[Hashable, list[int]] = {}
    for rank, value in sorted(values.items()):
        sides.setdefault(value, []).append(rank)
    order = sorted(sides.items(), key=lambda side: len(side[1]))
    most = max(len(of) for of in sides.values())
    minority = [rank for _, of in order if len(of) < most for rank in of]
    is_tie = sum(len(of) == most for of in sides.values()) > 1
    told = [f"{ranks(of)}: {value}{unit if i == 0 else ''}" for i, (value, of) in enumerate(order)]
    more = f"; {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    return Odd(kind, tuple(sorted(values if is_tie else minority or values)), "; ".join(told[:MOST_NAMED]) + more)
