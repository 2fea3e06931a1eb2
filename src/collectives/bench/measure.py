"""What every rank does in a measurement: run each configuration in turn, time it, and check each result."""

import json
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import distributed as dist

from collectives.autotune import bound, environment_machine, slowest_link
from collectives.backends import Backend, Call, Performed, backend
from collectives.backends.exchange import everyones
from collectives.backends.tuning import named
from collectives.bench.data import reduced, share, values
from collectives.bench.environment import record
from collectives.bench.settings import DTYPES, Row, Settings
from collectives.bench.statistics import median_interval
from collectives.bounds import algbw, busbw
from collectives.contracts import CONTRACTS
from collectives.schedule import parts

OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


# How often the time of an agreement is measured: the first times connections are made.
TRIES = 3


def preload() -> None:
    """Import what ranks share that are forks of one process; other ranks import what their back ends need."""
    import collectives.backends.p2p.collective  # noqa: F401  its loop is compiled code, which takes a second to load


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Measure everything that the settings under "measure" name; rank 0 reports the environment, progress and rows."""
    torch.set_num_threads(1)
    everything = [Settings(**each) for each in settings["measure"]]
    records = list(map(json.loads, everyones(json.dumps(record() | _launched(everything)).encode())))
    report({"environment": records})
    for wanted in everything:
        for nth, nbytes in enumerate(wanted.bytes):
            for row in _measure(wanted, nbytes, nth, report):
                report({"row": row})
    for name in dict.fromkeys(name for wanted in everything for name, _ in wanted.configurations()):
        backend(name).close()


def _launched(everything: list[Settings]) -> Row:
    """How this rank was launched and for what, and which GPU it has if one is wanted."""
    names = list(dict.fromkeys(backend for wanted in everything for backend in wanted.backends))
    mine: Row = {"where": everything[0].where, "backends": names, "set": everything[0].variables()}
    for name in names:
        mine |= backend(named(name)[0]).record()
    return mine


class _Case(NamedTuple):
    """One size on one rank: its contribution, where results go, and what they must be (None where nothing is asked)."""

    mine: torch.Tensor | None
    input: torch.Tensor | None
    output: torch.Tensor | None
    expected: torch.Tensor | None


def _case(wanted: Settings, n: int, device: torch.device) -> _Case:
    """N elements of the whole buffer, as nccl-tests counts them, on a device."""
    rank, p, dtype, exact = dist.get_rank(), wanted.ranks, getattr(torch, wanted.dtype), DTYPES[wanted.dtype][1]

    def given(of: int, length: int, first: int) -> torch.Tensor:
        return torch.from_numpy(values(of, length, wanted.op, p, exact, first)).to(device, dtype)

    def total(length: int, first: int) -> torch.Tensor:
        """Of the whole buffer every rank reduces a part, and gathers the others."""
        each = length if length < n else -(-n // p)
        result = torch.from_numpy(reduced(each, wanted.op, p, exact, first if length < n else rank * each)).to(dtype)
        if wanted.op == "avg":
            result.div_(p, rounding_mode=None if dtype.is_floating_point else "trunc")
        return (result if length < n else _gathered(result)[:n]).to(device)

    mine, expected = share(wanted.collective, n, rank, p, wanted.root, given, total, torch.cat)
    work = None if mine is None else mine.clone()
    if CONTRACTS[wanted.collective].parts == 0:  # torch works in place
        return _Case(mine, work, work, expected)
    return _Case(mine, work, None if expected is None else torch.empty_like(expected), expected)


def _gathered(mine: torch.Tensor) -> torch.Tensor:
    """All ranks' pieces, each computed by its rank. Only reductions are checked by what gloo gathers here."""
    everything = mine.new_empty(dist.get_world_size() * len(mine))
    if len(mine):
        dist.all_gather(list(everything.view(torch.uint8).chunk(dist.get_world_size())), mine.view(torch.uint8))
    return everything


def _measure(wanted: Settings, nbytes: int, nth: int, report: Callable[[Row], None]) -> list[Row]:
    """All configurations at one size, interleaved: round after round, each once, and each round begins with another."""
    configurations = wanted.configurations()
    devices = [backend(name).device() for name, _ in configurations]
    cases = {device: _case(wanted, wanted.elements(nbytes), device) for device in dict.fromkeys(devices)}
    rounds = wanted.warmups + wanted.repetitions
    times = torch.zeros(len(configurations), wanted.repetitions, dtype=torch.float64)
    wrong = torch.zeros(len(configurations), dtype=torch.int64)
    did: list[Performed] = [Performed(algorithm) for _, algorithm in configurations]
    for i in range(rounds):
        for turn in range(len(configurations)):
            which = (i + turn) % len(configurations)
            seconds, errors, did[which] = _once(wanted, configurations[which], cases[devices[which]])
            wrong[which] += errors
            if i >= wanted.warmups:
                times[which, i - wanted.warmups] = seconds
        done = {"done": nth * rounds + i + 1, "of": len(wanted.bytes) * rounds}
        report(done | {"where": wanted.where, "collective": wanted.collective})
    dist.all_reduce(times, op=dist.ReduceOp.MAX)  # a collective has ended when its last rank has
    dist.all_reduce(wrong)
    return [
        _row(wanted, wanted.elements(nbytes), configuration, did[which], times[which].tolist(), int(wrong[which]))
        | {"device": devices[which].type}
        for which, configuration in enumerate(configurations)
    ]


def _once(wanted: Settings, configuration: tuple[str, str], case: _Case) -> tuple[float, int, Performed]:
    """One call on fresh data, from a barrier on: this rank's seconds, its wrong elements, what was performed."""
    (name, algorithm), did = configuration, list[Performed]()
    one = backend(name)
    if case.input is not None and case.mine is not None:
        case.input.copy_(case.mine)
    if case.output is not None and case.output is not case.input:
        case.output.zero_()
    call = Call(
        wanted.collective,
        case.output,
        case.input,
        OPS[wanted.op],
        wanted.root,
        one.group(),
        algorithm,
        wanted.segments,
    )
    perform, timed = one.perform, _clock(wanted.where, one)
    seconds = timed(lambda: did.append(perform(call)), one.flush)
    if case.output is None or case.expected is None:
        return seconds, 0, did[0]
    return seconds, int((case.output != case.expected).sum()), did[0]


def _clock(where: str, one: Backend) -> Callable[[Callable[[], None], Callable[[], None]], float]:
    """What times a call: a GPU by its own events, ranks on one machine's emulated hosts by their common clock."""
    if one.device().type == "cuda":
        return _on_the_gpu_s_clock
    return _on_the_common_clock if where.startswith("cluster") else _on_the_clock


def _on_the_clock(act: Callable[[], None], flush: Callable[[], None]) -> float:
    dist.barrier()
    start = time.perf_counter()
    act()
    seconds = time.perf_counter() - start
    flush()
    return seconds


def _on_the_common_clock(act: Callable[[], None], flush: Callable[[], None]) -> float:
    """From a moment that all ranks have agreed on, and that is still to come for each of them when it hears of it.

    For ranks on one machine, which share its clock, and links so slow that they leave a barrier far apart.
    """
    start = _latest(time.monotonic()) + 3 * _trip()
    time.sleep(max(0.0, start - time.monotonic()))
    act()
    seconds = time.monotonic() - start
    flush()
    time.sleep(_trip())  # a rank that is done leaves the processor to the others
    return seconds


@cache
def _trip() -> float:
    """How long it takes all ranks to hear of the latest: the longest time of any, the last of some tries."""
    longest = 0.0
    for _ in range(TRIES):
        _latest(0.0)
        began = time.monotonic()
        _latest(0.0)
        longest = _latest(time.monotonic() - began)
    return longest


def _latest(moment: float) -> float:
    """The largest of all ranks' numbers, by our own messages, which take a fraction of the time of gloo's."""
    number = torch.tensor([moment], dtype=torch.float64)
    backend("p2p").perform(Call("all_reduce", number, number, dist.ReduceOp.MAX, algorithm="recursive_doubling"))
    return number.item()


def _on_the_gpu_s_clock(act: Callable[[], None], flush: Callable[[], None]) -> float:
    """From when an idle GPU gets its first piece of work until it has done the last; the stream keeps the order."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    dist.barrier()
    begin.record()
    act()
    end.record()
    end.synchronize()
    flush()
    return float(begin.elapsed_time(end)) * 1e-3


def _row(
    wanted: Settings, n: int, configuration: tuple[str, str], did: Performed, seconds: list[float], wrong: int
) -> Row:
    name, _ = configuration
    nbytes, p = n * DTYPES[wanted.dtype][0], wanted.ranks
    low, median, high = median_interval(seconds)
    on = environment_machine()
    return {
        "collective": wanted.collective,
        "algorithm": did.algorithm,
        "segments": did.segments,
        "executor": did.executor,
        "transport": did.transport,
        "auto": configuration == (name, "auto"),
        "auto_by": did.machine and {"machine": did.machine.name} | slowest_link(did.machine, p).model_dump(),
        "backend": name,
        "where": wanted.where,
        "ranks": wanted.ranks,
        "bytes": nbytes,
        "count": n // wanted.ranks if parts(wanted.collective, wanted.ranks) > 1 else n,
        "dtype": wanted.dtype,
        "op": wanted.op,
        "samples": [round(s * 1e6, 3) for s in seconds],
        "median_us": round(median * 1e6, 3),
        "low_us": round(low * 1e6, 3),
        "high_us": round(high * 1e6, 3),
        "algbw": algbw(nbytes, median),
        "busbw": busbw(wanted.collective, wanted.ranks, nbytes, median),
        "bound_us": on and round(bound(on, wanted.collective, p, nbytes) * 1e6, 3),
        "wrong": wrong,
    }
