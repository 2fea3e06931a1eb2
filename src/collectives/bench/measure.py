"""The task of every rank in a measurement: run each configuration in turn, time it, and check each result."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import distributed as dist

from collectives.autotune import bound, environment_machine, slowest_link
from collectives.backends import Backend, backend
from collectives.bench.clocks import CLOCKS, back_to_back, clock_of
from collectives.bench.data import reduced, share, values
from collectives.bench.report import launched, report_rows
from collectives.bench.settings import DTYPES, WHOLE, Row, Settings
from collectives.core.bounds import algbw, busbw
from collectives.core.schedule import parts
from collectives.engine.call import Call, Performed
from collectives.engine.ops import BY_ROW_NAME
from collectives.statistics import interval_us, median_interval, microseconds


def preload() -> None:
    """Import the modules that forks of one process share.

    Other ranks import what their back ends need.
    """
    import collectives.engine.group  # noqa: F401  its loop is compiled code, which takes a second to load


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Measure all settings under "measure"; rank 0 reports the environment, progress and rows."""
    wanted = [Settings.from_launcher(given) for given in settings["measure"]]
    report_rows(launched(wanted), report, _sizes(wanted, report))


def _sizes(wanted: list[Settings], report: Callable[[Row], None]) -> Iterator[list[Row]]:
    """Yield the rows of each size, and report progress in between."""
    for one in wanted:
        for nth, nbytes in enumerate(one.bytes):
            yield rows_of(one, nbytes, nth, report)


class _Buffers(NamedTuple):
    """Hold one size on one rank: its contribution, where a call finds it, what the call gets, and what it must give.

    None where nothing is asked. Where torch works in place only, a call out of place copies
    ``given`` into the output.
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
    rank, p, dtype, exact = (
        dist.get_rank(),
        wanted.ranks,
        getattr(torch, wanted.dtype),
        wanted.exact(),
    )

    def given(of: int, length: int, first: int) -> torch.Tensor:
        return torch.from_numpy(values(of, length, wanted.op, p, exact, first)).to(device, dtype)

    def total(length: int, first: int) -> torch.Tensor:
        """Return a reduction.

        Of the whole buffer every rank reduces a part, and gathers the others.
        """
        each = length if length < n else -(-n // p)
        result = torch.from_numpy(
            reduced(each, wanted.op, p, exact, first if length < n else rank * each)
        ).to(dtype)
        if wanted.op == "avg":
            result.div_(p, rounding_mode=None if dtype.is_floating_point else "trunc")
        return (result if length < n else _gathered(result)[:n]).to(device)

    mine, expected = share(wanted.collective, n, rank, p, wanted.root, given, total, torch.cat)
    held = None if mine is None else mine.clone()
    if wanted.collective in WHOLE:
        work = held if wanted.is_in_place() or mine is None else torch.empty_like(mine)
        return _Buffers(mine, held, work, work, expected)
    output = None if expected is None else torch.empty_like(expected)
    # One is this rank's part of the other.
    if wanted.is_in_place() and held is not None and output is not None:
        if len(held) < len(output):
            held = output[rank * len(held) :][: len(held)]
        else:
            output = held[rank * len(output) :][: len(output)]
    return _Buffers(mine, held, held, output, expected)


def _gathered(mine: torch.Tensor) -> torch.Tensor:
    """Gather the pieces that the ranks computed.

    Only checks of reductions depend on this gather by gloo.
    """
    everything = mine.new_empty(dist.get_world_size() * len(mine))
    if len(mine):
        dist.all_gather(
            list(everything.view(torch.uint8).chunk(dist.get_world_size())), mine.view(torch.uint8)
        )
    return everything


class _Case(NamedTuple):
    """Hold one configuration at one size on this rank.

    ``act`` makes its call, and returns ``did`` or None.
    """

    backend: Backend
    call: Call
    buffers: _Buffers
    act: Callable[[], Performed | None]
    did: Performed


def _case(
    wanted: Settings, configuration: tuple[str, str], buffers: _Buffers, prepared: ExitStack
) -> _Case:
    """Return the case of a configuration.

    A persistent call stays in ``prepared``, after an ordinary one was made.
    """
    one, algorithm = backend(configuration[0]), configuration[1]
    op, group, output, given = BY_ROW_NAME[wanted.op], one.group(), buffers.output, buffers.given
    call = Call(
        wanted.collective, output, buffers.input, op, wanted.root, group, algorithm, wanted.segments
    )
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
    n, configurations, rounds = (
        wanted.elements(nbytes),
        wanted.configurations(),
        wanted.warmups + wanted.repetitions,
    )
    devices = [backend(name).device() for name, _ in configurations]
    buffers = {device: _buffers(wanted, n, device) for device in dict.fromkeys(devices)}
    times = torch.zeros(len(configurations), wanted.repetitions, dtype=torch.float64)
    wrong = torch.zeros(len(configurations), dtype=torch.int64)

    def on_round(rounds_done: int) -> None:
        done = {"done": nth * rounds + rounds_done, "of": len(wanted.bytes) * rounds}
        report(done | {"where": wanted.where, "collective": wanted.collective})

    with ExitStack() as prepared:
        pairs = zip(configurations, devices, strict=True)
        cases = [
            _case(wanted, configuration, buffers[device], prepared)
            for configuration, device in pairs
        ]
        did = (_one_by_one if wanted.back_to_back else _in_turn)(
            wanted, cases, times, wrong, on_round
        )
        predicted = [case.backend.predict(case.call) for case in cases]
    last, slowest = _last(times)
    if wanted.back_to_back:
        dist.all_reduce(times)
    dist.all_reduce(wrong)
    samples = times / wanted.ranks if wanted.back_to_back else last
    return [
        _row(wanted, n, configuration, did[which], samples[which].tolist(), int(wrong[which]))
        | {"device": devices[which].type, "timing": _timing(wanted, cases[which].backend)}
        | {"persistent": wanted.persistent, "launch": wanted.launch}
        | {"slowest_rank": slowest[which]}
        | {"predicted_us": (seconds := predicted[which]) and round(seconds * 1e6, 3)}
        for which, configuration in enumerate(configurations)
    ]


def _in_turn(
    wanted: Settings,
    cases: list[_Case],
    times: torch.Tensor,
    wrong: torch.Tensor,
    on_round: Callable[[int], None],
) -> list[Performed]:
    """Time every case once in each round, and check every call.

    Each round begins with another case.
    """
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
    wanted: Settings,
    cases: list[_Case],
    times: torch.Tensor,
    wrong: torch.Tensor,
    on_round: Callable[[int], None],
) -> list[Performed]:
    """Time each case's calls in a row, of zeros, which no number of reductions changes.

    Check one more call.
    """
    did = [case.did for case in cases]
    for which, case in enumerate(cases):
        case.buffers.clear()
        for _ in range(wanted.warmups):
            case.act()
        times[which] = torch.tensor(
            back_to_back(case.act, case.backend, wanted.repetitions), dtype=torch.float64
        )
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
    """Make one call on fresh data.

    Return this rank's seconds, its wrong elements, and what was performed.
    """
    buffers, did = case.buffers, [case.did]
    if buffers.output is not None:
        buffers.output.zero_()
    if buffers.given is not None and buffers.mine is not None:
        buffers.given.copy_(buffers.mine)

    def act() -> None:
        did.append(case.act() or case.did)

    seconds = CLOCKS[clock_of(wanted.where, case.backend)](act, case.backend, wanted.collective)
    if buffers.output is None or buffers.expected is None:
        return seconds, 0, did[-1]
    return seconds, int((buffers.output != buffers.expected).sum()), did[-1]


def _timing(wanted: Settings, one: Backend) -> str:
    """Return how a back end's calls are timed, as a row says it."""
    return "back_to_back" if wanted.back_to_back else clock_of(wanted.where, one)


def _row(
    wanted: Settings,
    n: int,
    configuration: tuple[str, str],
    did: Performed,
    seconds: list[float],
    wrong: int,
) -> Row:
    name, algorithm = configuration
    nbytes, p = n * DTYPES[wanted.dtype][0], wanted.ranks
    _, median, _ = median_interval(seconds)
    on = environment_machine()
    performed = did._asdict()
    del performed["machine"]
    return wanted.model_dump(include={"collective", "where", "ranks", "dtype", "op"}) | {
        **performed,
        "auto": algorithm == "auto",
        "auto_by": did.machine
        and {"machine": did.machine.name} | slowest_link(did.machine, p).model_dump(),
        "backend": name,
        "bytes": nbytes,
        "count": n // wanted.ranks if parts(wanted.collective, wanted.ranks) > 1 else n,
        "in_place": wanted.is_in_place(),
        "samples": microseconds(seconds),
        **interval_us(seconds),
        "algbw": algbw(nbytes, median),
        "busbw": busbw(wanted.collective, wanted.ranks, nbytes, median),
        "bound_us": on and round(bound(on, wanted.collective, p, nbytes) * 1e6, 3),
        "wrong": wrong,
    }
