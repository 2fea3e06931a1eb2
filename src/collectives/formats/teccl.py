"""Schedules that TE-CCL writes, in JSON: which chunk travels over which link in which epoch, read as a schedule.

An all-gather is a list of flows of whole chunks. An all-to-all cuts a chunk into pieces: its flows have volumes, and
its "chunk paths" say which piece takes which way. A flow via a switch is one line: the switch passes the chunk on in
the next epoch and keeps nothing. Source: microsoft/TE-CCL, `teccl/solvers`, of Liu et al., SIGCOMM 2024.

The file is untrusted: it is parsed as data, and oversized input is refused before anything is computed.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from collectives.errors import short
from collectives.formats.teccl_flows import ROUNDED, Flow, Flows, Hop
from collectives.schedule import ScheduleError
from collectives.units import runs

# The largest files that are published have 2.4 MB, 12,000 flows, 34 nodes, 4,006 epochs.
MOST_BYTES, MOST_FLOWS, MOST_NODE, MOST_CHUNK, MOST_EPOCH = 1 << 24, 1 << 18, (1 << 10) - 1, 1 << 16, 1 << 16
# Nodes times chunks of the schedule: `verify` keeps 16 bytes for each. The largest published product is 522,240.
MOST_CELLS = 1 << 24

FLOW = re.compile(
    r"Chunk (\d{1,9}) from (\d{1,9}) traveled over (\d{1,9})->(\d{1,9})"
    r"(?: with volume (\d(?:\.\d{1,24})?(?:e-\d{1,3})?))? in epoch (\d{1,9})"
    r"(?: via switches (\d{1,9}(?: ?-> ?\d{1,9}){0,3}))?",
    re.ASCII,
)
DEMAND = re.compile(r"Demand at (\d{1,9}) for chunk (\d{1,9}) from (\d{1,9}) met by epoch (\d{1,9})", re.ASCII)
GPU = re.compile(r"GPU (\d{1,9})", re.ASCII)


def read(data: bytes) -> Flows:
    """The flows in the text of a file.

    Raises ValueError, one line, for any other text. Raises ScheduleError if the pieces of a chunk do not add up to the
    whole, or if the list of flows and the paths differ. Cost: linear in the length of the text.

    >>> swap = [f"Chunk 0 from {a} traveled over {a}->{b} in epoch 0" for a, b in ((0, 1), (1, 0))]
    >>> top = {"1-Epoch_Duration": 1, "5-Algo_Bandwidth": 2, "6-Demand_Met": {"GPU 0": {"GPU 1": {}}}, "7-Flows": swap}
    >>> flows = read(json.dumps(top).encode())
    >>> flows.collective, flows.gpus, flows.switches, flows.epochs
    ('all_gather', (0, 1), (), 1)
    """
    top = _parsed(data)
    name = next((name for name in ("7-Flows", "6-Flows") if name in top), None)
    if name is None:
        raise ValueError(f"keys of the file: got {short(list(top)[:8])}, expected 7-Flows among them")
    flows = [_flow(text) for text in _list(top[name], name)]
    whole = {flow.volume is None for flow in flows}
    if len(whole) != 1:
        raise ValueError(f"{name}: got {'flows with and without a volume' if whole else 'none'}, expected one kind")
    return (_all_gather if whole.pop() else _all_to_all)(top, flows)


def _parsed(data: bytes) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise ValueError(f"size of the file: got more than {MOST_BYTES:,} bytes, expected at most that")
    try:
        top = json.loads(data.decode("utf-8-sig"), parse_constant=_refused)
    except RecursionError:
        raise ValueError("levels of the file: got hundreds, expected at most 5") from None
    except ValueError as error:  # also bytes that are not UTF-8, and numbers of thousands of digits
        raise ValueError(f"not JSON: {str(error).splitlines()[0][:200]}") from None
    return _dict(top, "the file")


def _refused(word: str) -> NoReturn:
    raise ValueError(f"got {word}, expected a number")


def _dict(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: got {short(value)}, expected an object with names")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > MOST_FLOWS:
        got = f"{len(value):,} entries" if isinstance(value, list) else short(value)
        raise ValueError(f"{name}: got {got}, expected a list of at most {MOST_FLOWS:,}")
    return value


def _positive(top: dict[str, Any], name: str) -> float:
    value = top.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name}: got {short(value)}, expected a number above 0")
    return float(value)


def _match(pattern: re.Pattern[str], text: Any, example: str) -> re.Match[str]:
    found = pattern.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise ValueError(f"got {short(text)}, expected {example!r}")
    return found


def _flow(text: Any) -> Flow:
    found = _match(FLOW, text, "Chunk C from O traveled over A->B in epoch E")
    chunk, origin, src, dst, epoch = (int(found[group]) for group in (1, 2, 3, 4, 6))
    via = tuple(int(each) for each in (found[7] or "").split("->") if each)
    if src == dst or chunk > MOST_CHUNK or epoch > MOST_EPOCH or max(origin, src, dst, *via) > MOST_NODE:
        limits = f"two nodes up to {MOST_NODE:,}, a chunk up to {MOST_CHUNK:,}, an epoch up to {MOST_EPOCH:,}"
        raise ValueError(f"got {short(text)}, expected {limits}")
    return Flow(chunk, origin, src, dst, float(found[5]) if found[5] else None, epoch, via)


def _all_gather(top: dict[str, Any], flows: list[Flow]) -> Flows:
    """The GPUs are those of the file's demand, each with the same number of chunks."""
    met = _dict(top.get("6-Demand_Met"), "6-Demand_Met")
    names = [*met, *(name for to, each in met.items() for name in _dict(each, f"6-Demand_Met, {to}"))]
    gpus = _need_few({int(_match(GPU, name, "GPU N")[1]) for name in names})
    rank = {gpu: r for r, gpu in enumerate(gpus)}
    _need_nodes(flows, gpus)
    chunks = 1 + max(flow.chunk for flow in flows)
    hops = tuple(Hop(flow, rank[flow.origin] * chunks + flow.chunk) for flow in flows)
    return _made("all_gather", top, gpus, len(gpus) * chunks, hops)


def _all_to_all(top: dict[str, Any], flows: list[Flow]) -> Flows:
    """Pair by pair: a piece of a pair is a chunk of the schedule, and its last piece fills the pair up."""
    name = next((name for name in ("8-Chunk paths", "7-chunk paths") if name in top), "8-Chunk paths")
    demands = {_demand(key): list(_pieces(key, value)) for key, value in _dict(top.get(name), name).items()}
    gpus = _need_few({gpu for origin, to, _ in demands for gpu in (origin, to)})
    rank = {gpu: r for r, gpu in enumerate(gpus)}
    pieces = [flow for paths in demands.values() for path in paths for flow in path]
    _need_nodes(pieces, gpus)
    pairs: dict[int, list[list[Flow]]] = {}
    for (origin, to, chunk), paths in demands.items():
        if chunk % len(gpus) != rank[to]:
            raise ValueError(f"demand at {to}: got chunk {chunk}, expected {rank[to]} modulo {len(gpus)} GPUs")
        _need_whole(origin, to, chunk, paths)
        pairs.setdefault(rank[origin] * len(gpus) + rank[to], []).extend(paths)
    if odd := set(flows) ^ set(pieces):
        flow = min(odd, key=str)
        raise ScheduleError(f"flows and {name}: got {_told(flow)} in one of them, expected the same flows in both")
    most = max(map(len, pairs.values()))
    return _made("all_to_all", top, gpus, len(gpus) ** 2 * most, tuple(_hops(pairs, most)))


def _hops(pairs: dict[int, list[list[Flow]]], most: int) -> Iterator[Hop]:
    for pair, paths in pairs.items():
        for piece, path in enumerate(paths):
            width = most - piece if piece == len(paths) - 1 else 1
            yield from (Hop(flow, pair * most + piece, width) for flow in path)


def _demand(key: str) -> tuple[int, int, int]:
    """Origin, receiver and number of the chunk."""
    to, chunk, origin, _ = map(int, _match(DEMAND, key, "Demand at D for chunk C from O met by epoch E").groups())
    return origin, to, chunk


def _pieces(key: str, paths: Any) -> Iterator[list[Flow]]:
    origin, _, chunk = _demand(key)
    for path in _list(paths, key):
        texts = [each[1] if isinstance(each, list) and len(each) == 2 else each for each in _list(path, key)]
        flows = [_flow(f"Chunk {chunk} from {origin} traveled over {text}") for text in texts]
        if not flows or any(flow.volume is None for flow in flows):
            raise ValueError(f"{key}: got a path without flows or volumes, expected flows with volumes")
        yield flows


def _need_whole(origin: int, to: int, chunk: int, paths: list[list[Flow]]) -> None:
    volume = sum(min(flow.volume or 0 for flow in path) for path in paths)
    if abs(volume - 1) > ROUNDED:
        raise ScheduleError(f"GPU {to}: got {volume:g} of chunk {chunk} from {origin}, expected all of it, 1")


def _need_few(gpus: set[int]) -> tuple[int, ...]:
    if not gpus or max(gpus) > MOST_NODE:
        raise ValueError(f"GPUs of the demand: got {short(sorted(gpus)[-1:])}, expected numbers up to {MOST_NODE:,}")
    return tuple(sorted(gpus))


def _need_nodes(flows: Iterable[Flow], gpus: tuple[int, ...]) -> None:
    """Flows begin and end at GPUs of the demand; the nodes between them are switches."""
    known = set(gpus)
    for flow in flows:
        strange = [node for node in (flow.origin, flow.src, flow.dst) if node not in known]
        if strange or known.intersection(flow.via):
            got = f"node {strange[0]}" if strange else "a GPU as a switch"
            asked = f"one of the {len(gpus)} GPUs of the demand ({runs(gpus)}), and switches with other numbers"
            raise ValueError(f"{_told(flow)}: got {got}, expected {asked}")


def _told(flow: Flow) -> str:
    return f"chunk {flow.chunk} from {flow.origin} over {'->'.join(map(str, flow.nodes))} in epoch {flow.epoch}"


def _made(collective: str, top: dict[str, Any], gpus: tuple[int, ...], k: int, hops: tuple[Hop, ...]) -> Flows:
    switches = tuple(sorted({node for hop in hops for node in hop.flow.via}))
    nodes = len(gpus) + len(switches)
    if nodes * k > MOST_CELLS:
        raise ValueError(f"chunks: got {k:,} on {nodes:,} nodes, expected a product of at most {MOST_CELLS:,}")
    numbers = _positive(top, "1-Epoch_Duration"), _positive(top, "5-Algo_Bandwidth")
    return Flows(collective, gpus, switches, k, hops, *numbers)
