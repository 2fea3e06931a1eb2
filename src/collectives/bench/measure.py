"""The task of every rank in a measurement: run each configuration in turn, time it, and check each result.

The data are whole numbers hashed from (rank, element), small enough that every result is exact. Ones would not show a
chunk that landed in the wrong place, and equal ranks would not show one counted twice while another is dropped.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed as dist

from collectives.autotune import bound, environment_machine, slowest_link
from collectives.backends import Backend, backend, named
from collectives.bench.results import record, variables
from collectives.bench.settings import DTYPES, WHOLE, Row, Settings
from collectives.bounds import algbw, busbw
from collectives.codecs import encoded_bytes, split
from collectives.engine.call import Call, Performed
from collectives.engine.handshake import all_gather_bytes
from collectives.schedule import Ints, parts
from collectives.statistics import interval_us, median_interval, microseconds

T = TypeVar("T")

OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


# How often the time of an agreement is measured: the first times connections are made.
TRIES = 3

MAX_VALUE = 999

# The ranks that multiply by 2 in one element, at most, so that a product stays exact in every dtype.
DOUBLERS = 8

# Elements that are reduced at a time: the processor's cache holds them.
BLOCK = 1 << 14

SENT = 8  # the column of /proc/net/dev that counts the bytes an interface has sent


def preload() -> None:
    """Import the modules that forks of one process share; other ranks import what their back ends need."""
    import collectives.engine.group  # noqa: F401  its loop is compiled code, which takes a second to load


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Measure all settings under "measure"; rank 0 reports the environment, progress and rows."""
    wanted = [Settings.from_launcher(given) for given in settings["measure"]]
    report_rows(launched(wanted), report, _sizes(wanted, report))


def launched(wanted: list[Settings]) -> Row:
    """Return how the ranks of these measurements were launched, and for which back ends."""
    names = list(dict.fromkeys(name for one in wanted for name in one.backends))
    return {"where": wanted[0].where, "backends": names, "set": wanted[0].variables()}


def _sizes(wanted: list[Settings], report: Callable[[Row], None]) -> Iterator[list[Row]]:
    """Yield the rows of each size, and report progress in between."""
    for one in wanted:
        for nth, nbytes in enumerate(one.bytes):
            yield rows_of(one, nbytes, nth, report)


def report_rows(launched: Row, report: Callable[[Row], None], cases: Iterable[list[Row]]) -> None:
    """Report the environment of all ranks, then the rows of each case as soon as they exist, and close the back ends.

    ``launched`` says how these ranks were started: "where", for which "backends", and which variables were "set".
    ``cases`` measures: nothing of it is run before the environment is reported.
    """
    torch.set_num_threads(1)
    names = list(dict.fromkeys(named(typed)[0] for typed in launched["backends"]))
    report({"environment": _records(launched, names)})
    for rows in cases:
        report({"rows": rows})
    for name in names:
        backend(name).close()


def _records(launched: Row, names: list[str]) -> list[Row]:
    """Return every rank's record, with its host's name, so that a slow one is found. On loopback all have the same."""
    mine = record() | {"where": launched["where"], "backends": launched["backends"], "rank": dist.get_rank()}
    mine |= {"set": variables() | launched.get("set", {})}
    mine |= {} if launched["where"] == "loopback" else {"host": socket.gethostname()}
    for name in names:
        mine |= backend(name).record()
    return gathered(mine)


def gathered(mine: Any, device: torch.device | None = None) -> list[Any]:
    """Return every rank's JSON value, in the order of the ranks. All ranks call it."""
    return [json.loads(each) for each in all_gather_bytes(json.dumps(mine).encode(), device=device)]


def sent_bytes() -> int:
    """Return the bytes that this host's interface has sent, headers included; 0 if it is the loopback interface."""
    name, counters = os.environ.get("GLOO_SOCKET_IFNAME", "lo"), Path("/proc/self/net/dev")
    lines = counters.read_text().splitlines() if counters.exists() else []
    fields = {line.partition(":")[0].strip(): line.partition(":")[2].split() for line in lines}
    return int(fields[name][SENT]) if name in fields and name != "lo" else 0


def values(rank: int, n: int, op: str, p: int, exact: int, first: int = 0) -> Ints:
    """Return rank ``rank``'s contribution: ``n`` whole numbers whose reduction over ``p`` ranks is at most ``exact``.

    They are those from element ``first`` on. ``op`` is the reduction.

    >>> values(0, 4, "sum", p=4, exact=2**24).tolist() != values(1, 4, "sum", p=4, exact=2**24).tolist()
    True
    """
    bits = _hashed(rank, first, n)
    if op == "prod":
        turn = (rank + np.arange(first, first + n)) % p
        doubles = (bits >> np.uint64(1) & np.uint64(1) == 1) & (turn < DOUBLERS)
        return np.where(bits & np.uint64(1), 1, -1) * np.where(doubles, 2, 1)
    bound = min(MAX_VALUE, exact if op in ("max", "min") else exact // p)
    return (bits % np.uint64(2 * bound + 1)).astype(np.int64) - bound


def reduced(n: int, op: str, p: int, exact: int, first: int = 0) -> Ints:
    """Return the reduction of all ranks' values, computed without the code under test; for "avg" the sum.

    It has ``n`` elements, from ``first`` on.
    """
    combine: dict[str, Callable[[Ints, Ints], Ints]] = {"prod": np.multiply, "max": np.maximum, "min": np.minimum}
    total = np.empty(n, dtype=np.int64)
    for start in range(0, n, BLOCK):
        block = total[start : start + BLOCK]
        block[:] = values(0, len(block), op, p, exact, first + start)
        for rank in range(1, p):
            block[:] = combine.get(op, np.add)(block, values(rank, len(block), op, p, exact, first + start))
    return total


def share(
    collective: str,
    n: int,
    rank: int,
    p: int,
    root: int,
    given: Callable[[int, int, int], T],
    total: Callable[[int, int], T],
    join: Callable[..., T],
) -> tuple[T | None, T | None]:
    """Return a rank's input and what it must have at the end, computed without any schedule; None if it has none.

    The whole buffer has ``n`` elements, a multiple of ``p`` where it consists of parts. ``given(of, length, first)`` is
    what rank ``of`` contributes from element ``first`` on, ``total(length, first)`` the reduction of what all ranks
    contribute; all ranks call that alike. ``join`` concatenates.
    """
    part, at_root = n // p, rank == root
    match collective:
        case "all_reduce":
            return given(rank, n, 0), total(n, 0)
        case "reduce":
            reduced = total(n, 0)
            return given(rank, n, 0), reduced if at_root else None
        case "broadcast":
            return given(rank, n, 0), given(root, n, 0)
        case "scatter":
            return given(rank, n, 0) if at_root else None, given(root, part, rank * part)
        case "gather":
            return given(rank, part, 0), join([given(of, part, 0) for of in range(p)]) if at_root else None
        case "all_gather":
            return given(rank, part, 0), join([given(of, part, 0) for of in range(p)])
        case "all_to_all":
            return given(rank, n, 0), join([given(of, part, rank * part) for of in range(p)])
        case _:  # reduce_scatter
            return given(rank, n, 0), total(part, rank * part)


def _hashed(rank: int, first: int, n: int) -> NDArray[np.uint64]:
    """Return 64 well-mixed bits for every element (splitmix64: Steele, Lea and Flood 2014)."""
    x = np.arange(first + 1, first + n + 1, dtype=np.uint64) + np.uint64((rank + 1) << 40)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class _Buffers(NamedTuple):
    """Hold one size on one rank: its contribution, where a call finds it, what the call gets, and what it must give.

    None where nothing is asked. Where torch works in place only, a call out of place copies ``given`` into the output.
    """

    mine: torch.Tensor | None
    given: torch.Tensor | None
    input: torch.Tensor | None
    output: torch.Tensor | None
    expected: torch.Tensor | None

    def clear(self) -> None:
        """Fill what calls read and write with zeros."""
        for each in (self.given, self.input, self.output):
            if each is not None:
                each.zero_()


def _buffers(wanted: Settings, n: int, device: torch.device) -> _Buffers:
    """Make the buffers for ``n`` elements of the whole buffer, as nccl-tests counts them, on a device."""
    rank, p, dtype, exact = dist.get_rank(), wanted.ranks, getattr(torch, wanted.dtype), wanted.exact()

    def given(of: int, length: int, first: int) -> torch.Tensor:
        return torch.from_numpy(values(of, length, wanted.op, p, exact, first)).to(device, dtype)

    def total(length: int, first: int) -> torch.Tensor:
        """Return a reduction. Of the whole buffer every rank reduces a part, and gathers the others."""
        each = length if length < n else -(-n // p)
        result = torch.from_numpy(reduced(each, wanted.op, p, exact, first if length < n else rank * each)).to(dtype)
        if wanted.op == "avg":
            result.div_(p, rounding_mode=None if dtype.is_floating_point else "trunc")
        return (result if length < n else _gathered(result)[:n]).to(device)

    mine, expected = share(wanted.collective, n, rank, p, wanted.root, given, total, torch.cat)
    held = None if mine is None else mine.clone()
    if wanted.collective in WHOLE:
        work = held if wanted.is_in_place() or mine is None else torch.empty_like(mine)
        return _Buffers(mine, held, work, work, expected)
    output = None if expected is None else torch.empty_like(expected)
    if wanted.is_in_place() and held is not None and output is not None:  # one is this rank's part of the other
        if len(held) < len(output):
            held = output[rank * len(held) :][: len(held)]
        else:
            output = held[rank * len(output) :][: len(output)]
    return _Buffers(mine, held, held, output, expected)


def _gathered(mine: torch.Tensor) -> torch.Tensor:
    """Gather the pieces that the ranks computed. Only checks of reductions depend on this gather by gloo."""
    everything = mine.new_empty(dist.get_world_size() * len(mine))
    if len(mine):
        dist.all_gather(list(everything.view(torch.uint8).chunk(dist.get_world_size())), mine.view(torch.uint8))
    return everything


class _Case(NamedTuple):
    """Hold one configuration at one size on this rank; ``act`` makes its call, and returns ``did`` or None."""

    backend: Backend
    call: Call
    buffers: _Buffers
    act: Callable[[], Performed | None]
    did: Performed


def _case(wanted: Settings, configuration: tuple[str, str], buffers: _Buffers, prepared: ExitStack) -> _Case:
    """Return the case of a configuration. A persistent call stays in ``prepared``, after an ordinary one was made."""
    one, algorithm = backend(configuration[0]), configuration[1]
    op, group, output, given = OPS[wanted.op], one.group(), buffers.output, buffers.given
    call = Call(wanted.collective, output, buffers.input, op, wanted.root, group, algorithm, wanted.segments)
    act: Callable[[], Performed | None] = one.bind(call)
    did = Performed(algorithm)
    if wanted.persistent:
        did = one.perform(call)
        one.flush()
        act = prepared.enter_context(one.prepare(call))
    if output is None or given is None or buffers.input is given:
        return _Case(one, call, buffers, act, did)

    def copy_and_act() -> Performed | None:
        output.copy_(given)
        return act()

    return _Case(one, call, buffers, copy_and_act, did)


def rows_of(wanted: Settings, nbytes: int, nth: int, report: Callable[[Row], None]) -> list[Row]:
    """Measure all configurations at one size: in turn, or back to back one after the other."""
    n, configurations, rounds = wanted.elements(nbytes), wanted.configurations(), wanted.warmups + wanted.repetitions
    devices = [backend(name).device() for name, _ in configurations]
    buffers = {device: _buffers(wanted, n, device) for device in dict.fromkeys(devices)}
    times = torch.zeros(len(configurations), wanted.repetitions, dtype=torch.float64)
    wrong = torch.zeros(len(configurations), dtype=torch.int64)

    def on_round(rounds_done: int) -> None:
        done = {"done": nth * rounds + rounds_done, "of": len(wanted.bytes) * rounds}
        report(done | {"where": wanted.where, "collective": wanted.collective})

    with ExitStack() as prepared:
        pairs = zip(configurations, devices, strict=True)
        cases = [_case(wanted, configuration, buffers[device], prepared) for configuration, device in pairs]
        did = (_one_by_one if wanted.back_to_back else _in_turn)(wanted, cases, times, wrong, on_round)
        predicted = [case.backend.predict(case.call) for case in cases]
    last, slowest = _last(times)
    if wanted.back_to_back:
        dist.all_reduce(times)
    dist.all_reduce(wrong)
    samples = times / wanted.ranks if wanted.back_to_back else last
    return [
        _row(wanted, n, configuration, did[which], samples[which].tolist(), int(wrong[which]))
        | {"device": devices[which].type, "timing": _timing(wanted, cases[which].backend)}
        | {"persistent": wanted.persistent, "slowest_rank": slowest[which]}
        | {"predicted_us": (seconds := predicted[which]) and round(seconds * 1e6, 3)}
        for which, configuration in enumerate(configurations)
    ]


def _in_turn(
    wanted: Settings, cases: list[_Case], times: torch.Tensor, wrong: torch.Tensor, on_round: Callable[[int], None]
) -> list[Performed]:
    """Time every case once in each round, and check every call. Each round begins with another case."""
    did = [case.did for case in cases]
    for i in range(wanted.warmups + wanted.repetitions):
        for turn in range(len(cases)):
            which = (i + turn) % len(cases)
            seconds, errors, did[which] = _once(wanted, cases[which])
            wrong[which] += errors
            if i >= wanted.warmups:
                times[which, i - wanted.warmups] = seconds
        on_round(i + 1)
    return did


def _one_by_one(
    wanted: Settings, cases: list[_Case], times: torch.Tensor, wrong: torch.Tensor, on_round: Callable[[int], None]
) -> list[Performed]:
    """Time each case's calls in a row, of zeros, which no number of reductions changes; check one more call."""
    did = [case.did for case in cases]
    for which, case in enumerate(cases):
        case.buffers.clear()
        for _ in range(wanted.warmups):
            case.act()
        times[which] = torch.tensor(_back_to_back(case, wanted.repetitions), dtype=torch.float64)
        _, wrong[which], did[which] = _once(wanted, case)
    on_round(wanted.warmups + wanted.repetitions)
    return did


def _last(times: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return the times of the last rank, and which rank that was most often, for each configuration."""
    last, rank, p = times.clone(), dist.get_rank(), dist.get_world_size()
    dist.all_reduce(last, op=dist.ReduceOp.MAX)  # a collective has ended when its last rank has
    votes = (last == times).sum(dim=1) * p + p - 1 - rank  # of equal ranks the first
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return last, (p - 1 - votes % p).tolist()


def _once(wanted: Settings, case: _Case) -> tuple[float, int, Performed]:
    """Make one call on fresh data; return this rank's seconds, its wrong elements, and what was performed."""
    buffers, did = case.buffers, [case.did]
    if buffers.output is not None:
        buffers.output.zero_()
    if buffers.given is not None and buffers.mine is not None:
        buffers.given.copy_(buffers.mine)

    def act() -> None:
        did.append(case.act() or case.did)

    seconds = CLOCKS[_clock(wanted.where, case.backend)](act, case.backend, wanted.collective)
    if buffers.output is None or buffers.expected is None:
        return seconds, 0, did[-1]
    return seconds, int((buffers.output != buffers.expected).sum()), did[-1]


def _timing(wanted: Settings, one: Backend) -> str:
    """Return how a back end's calls are timed, as a row says it."""
    return "back_to_back" if wanted.back_to_back else _clock(wanted.where, one)


def _clock(where: str, one: Backend) -> str:
    """Return the clock that times a call: on emulated hosts the one that their ranks share, else a GPU's own."""
    if where.startswith("cluster"):
        return "agreed"
    return "gpu" if one.device().type == "cuda" else "met"


def _back_to_back(case: _Case, calls: int) -> list[float]:
    """Return the seconds from the end of each call to the end of the next, on this rank or its GPU."""
    _latest(0.0)
    if case.backend.device().type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]  # type: ignore[no-untyped-call]
        events[0].record()
        for event in events[1:]:
            case.act()
            event.record()
        torch.cuda.synchronize()
        seconds = [float(begin.elapsed_time(end)) * 1e-3 for begin, end in pairwise(events)]
    else:
        moments = [time.perf_counter()]
        for _ in range(calls):
            case.act()
            moments.append(time.perf_counter())
        seconds = [end - begin for begin, end in pairwise(moments)]
    case.backend.flush()
    _latest(0.0)
    return seconds


def _on_the_clock(act: Callable[[], None], one: Backend, _: str) -> float:
    """Return the seconds of a call from when all ranks have met by our own messages.

    4 ranks on 2 cores leave a barrier of gloo's a millisecond apart. Ranks meet again after the call, because one that
    went on would check its sum on a core that another needs to finish; only after `flush`, without which Open MPI's
    last messages may wait until this rank calls MPI again.
    """
    _latest(0.0)
    start = time.perf_counter()
    act()
    seconds = time.perf_counter() - start
    one.flush()
    _latest(0.0)
    return seconds


def _on_the_common_clock(act: Callable[[], None], one: Backend, _: str) -> float:
    """Return the seconds of a call from a moment that all ranks have agreed on before it came.

    For ranks on one machine, which share its clock, and links so slow that they leave a barrier far apart: after a ring
    one hop. A GPU is idle when the moment comes, and has finished the call when the time ends.
    """
    _finish(one)
    start = _latest(time.monotonic()) + 3 * _trip()
    time.sleep(max(0.0, start - time.monotonic()))
    act()
    _finish(one)
    seconds = time.monotonic() - start
    one.flush()
    time.sleep(_trip())  # a rank that is done leaves the processor to the others
    return seconds


def _finish(one: Backend) -> None:
    """Wait until this rank's GPU is idle, if it has one."""
    if one.device().type == "cuda":
        torch.cuda.synchronize()


@cache
def _trip() -> float:
    """Return the seconds in which all ranks learn the latest moment: the longest time of any rank in the last try."""
    longest = 0.0
    for _ in range(TRIES):
        _latest(0.0)
        began = time.monotonic()
        _latest(0.0)
        longest = _latest(time.monotonic() - began)
    return longest


def _latest(moment: float) -> float:
    """Return the largest of all ranks' numbers, by our own messages, which take a fraction of the time of gloo's."""
    number = torch.tensor([moment], dtype=torch.float64)
    backend("p2p").perform(Call("all_reduce", number, number, dist.ReduceOp.MAX, algorithm="recursive_doubling"))
    return number.item()


def _on_the_gpu_s_clock(act: Callable[[], None], one: Backend, collective: str) -> float:
    """Return the seconds from when all ranks' GPUs are ready until this rank's GPU has finished the call.

    Ranks first exchange a number on the same stream. That ends on every GPU when the last rank has arrived, so the time
    has no skew of the hosts, and most of a launch is hidden behind it. Ranks still begin up to a hop apart, because a
    ring's or tree's last messages arrive one after the other: too far on emulated hosts.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    met = torch.zeros(dist.get_world_size(), device=one.device())
    torch.cuda.synchronize()
    # Under NCCL_ALGO=PAT an all-reduce is an error, and under Tree an all-gather is.
    if collective in ("all_gather", "reduce_scatter"):
        dist.all_gather_into_tensor(met, met[:1].clone(), group=one.group())
    else:
        dist.all_reduce(met, group=one.group())
    begin.record()
    act()
    end.record()
    end.synchronize()
    one.flush()
    return float(begin.elapsed_time(end)) * 1e-3


# What a row's "timing" says, where calls are not made back to back.
CLOCKS = {"met": _on_the_clock, "agreed": _on_the_common_clock, "gpu": _on_the_gpu_s_clock}


def _row(
    wanted: Settings, n: int, configuration: tuple[str, str], did: Performed, seconds: list[float], wrong: int
) -> Row:
    name, algorithm = configuration
    nbytes, p = n * DTYPES[wanted.dtype][0], wanted.ranks
    _, median, _ = median_interval(seconds)
    on = environment_machine()
    performed = did._asdict()
    del performed["machine"]
    return wanted.model_dump(include={"collective", "where", "ranks", "dtype", "op"}) | {
        **performed,
        "auto": split(algorithm)[0] == "auto",
        "auto_by": did.machine and {"machine": did.machine.name} | slowest_link(did.machine, p).model_dump(),
        "backend": name,
        "bytes": nbytes,
        "count": n // wanted.ranks if parts(wanted.collective, wanted.ranks) > 1 else n,
        "in_place": wanted.is_in_place(),
        "samples": microseconds(seconds),
        **interval_us(seconds),
        "algbw": algbw(nbytes, median),
        "busbw": busbw(wanted.collective, wanted.ranks, nbytes, median),
        "bound_us": on and round(bound(on, wanted.collective, p, encoded_bytes(n, nbytes, algorithm)) * 1e6, 3),
        "wrong": wrong,
    }
