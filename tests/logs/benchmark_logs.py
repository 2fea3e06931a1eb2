"""Results as nccl-tests prints them, of a cost model with planted faults."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from collectives.core.contracts import CONTRACTS, REDUCING, ROOTED
from collectives_logs.benchmark_tables import NAMES, Floats

SIZES = tuple(1 << power for power in range(3, 34))


class Run(NamedTuple):
    """One sweep: t = latency + factor * bytes / rate, with noise in both columns.

    Then what faults do to them.
    """

    seed: int = 0
    collective: str = "all_reduce"
    ranks: int = 16
    hosts: tuple[str, ...] = ("n1", "n2")
    device: str = "NVIDIA B200"
    latency: float = 20e-6
    rate: float = 200e9
    noise: float = 0.03
    sizes: tuple[int, ...] = SIZES
    style: str = "new"  # or "old"
    prefix: str = ""
    wrong: tuple[int, ...] = ()  # positions of sizes
    is_checked: bool = True
    # Changes times: 2 columns, one for each place.
    fault: Callable[[Floats, np.random.Generator], None] | None = None

    @property
    def times(self) -> Floats:
        """Seconds, of shape (2, sizes)."""
        chance = np.random.default_rng(self.seed)
        n = np.array(self.sizes, float)
        line = self.latency + self.factor * n / self.rate
        times: Floats = line * np.exp(self.noise * chance.standard_normal((2, len(n))))
        if self.fault:
            self.fault(times, chance)
        return times

    @property
    def factor(self) -> float:
        """Busbw / algbw."""
        return CONTRACTS[self.collective].factor(self.ranks)

    @property
    def program(self) -> str:
        """Of nccl-tests."""
        return f"{NAMES.get(self.collective, self.collective)}_perf"


def text(run: Run, last: int = 0) -> str:
    """What nccl-tests prints; ``last``: the size that was asked for, if the run ends early."""
    lines = _heading(run, last or run.sizes[-1]) + [
        _row(run, i, both) for i, both in enumerate(run.times.T)
    ]
    if not last:
        lines += [f"# Out of bounds values : {len(run.wrong)} {'FAILED' if run.wrong else 'OK'}"]
        lines += ["# Avg bus bandwidth    : 70.1 ", "#"]
    return "\n".join(run.prefix + line for line in lines) + "\n"


def _heading(run: Run, last: int) -> list[str]:
    is_new, each = run.style == "new", -(-run.ranks // len(run.hosts))
    lines = [f"# Collective test starting: {run.program}"] if is_new else []
    lines += [
        f"# nThread 1 nGpus 1 minBytes {run.sizes[0]} maxBytes {last} step: 2(factor) warmup iters: 5 iters: 20"
    ]
    for rank in range(run.ranks):
        who = f"{'Group  0 ' * is_new}Pid {900 + rank:6d} on {run.hosts[rank // each]:>10}"
        lines += [f"#  Rank {rank:2d} {who} device {rank % each:2d} [0x07] {run.device}"]
    part = f"time   algbw   busbw {'#wrong' if is_new else 'error'}"
    lines += [
        f"#       size         count      type   redop {'   root' * is_new}     {part}     {part}"
    ]
    return [
        *lines,
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)",
    ]


def _row(run: Run, i: int, both: Floats) -> str:
    n, is_new = run.sizes[i], run.style == "new"
    op = "sum" if run.collective in REDUCING else "none" * is_new
    root = (0 if run.collective in ROOTED else -1) if is_new else ""
    row = f"{n:12d}  {n // 4:12d}  {'float':>8}  {op:>6}  {root:>6}"
    wrong = "2e-07" if not is_new else str(7 * (i in run.wrong)) if run.is_checked else "N/A"
    for seconds in both:
        digits, rate = f"{seconds * 1e6:.2f}"[:7].rstrip("."), n / seconds / 1e9
        row += f"  {digits:>7}  {rate:6.2f}  {rate * run.factor:6.2f}  {wrong:>6}"
    return row


def report(run: Run) -> str:
    """What nccl-tests writes with -J."""
    hosts = [run.hosts[rank * len(run.hosts) // run.ranks] for rank in range(run.ranks)]
    devices = [
        {"rank": i, "hostname": host, "device_info": run.device} for i, host in enumerate(hosts)
    ]
    results = [
        {
            "size": n,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": out,
            "in_place": inside,
        }
        for n, (out, inside) in _measured(run, "alg_bw", "bus_bw", "nwrong")
    ]
    before = {
        "version": 3,
        "args": [f"./build/{run.program}", "-J", "a.json"],
        "nccl_version": 22907,
    }
    config = {
        "nthreads": 1,
        "ngpus": 1,
        "maximum_bytes": run.sizes[-1],
        "step_factor": 2,
        "devices": devices,
    }
    return json.dumps(
        before
        | {"config": config, "results": results, "average_bus_bandwidth": {"bandwidth": 70.1}}
    )


def rccl_rows(run: Run) -> str:
    """What rccl-tests writes as JSON: a line for each part of a row."""
    name = {
        "name": run.collective.title().replace("_", ""),
        "gpus": run.ranks,
        "redop": "sum",
        "type": "float",
    }
    return "".join(
        json.dumps(name | {"size": n, "inPlace": in_place} | part) + "\n"
        for n, parts in _measured(run, "algBw", "busBw", "#wrong")
        for in_place, part in enumerate(parts)
    )


def our_rows(run: Run) -> str:
    """What `collectives bench --json` prints."""
    how = {
        "algorithm": "ring",
        "backend": "p2p",
        "where": "loopback",
        "dtype": "float32",
        "op": "sum",
    }
    what = how | {"collective": run.collective, "ranks": run.ranks}
    return "".join(
        json.dumps(what | {"bytes": n, "samples": [out["time"]], "median_us": out["time"]} | out)
        + "\n"
        for n, (out, _) in _measured(run, "algbw", "busbw", "wrong")
    )


def _measured(
    run: Run, algbw: str, busbw: str, wrong: str
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """A size and its two parts, with these names of the rates and of the wrong elements."""
    for i, (n, both) in enumerate(zip(run.sizes, run.times.T * 1e6, strict=True)):
        rest = {wrong: str(7 * (i in run.wrong))}
        yield (
            n,
            [
                {"time": us, algbw: n / us / 1e3, busbw: run.factor * n / us / 1e3} | rest
                for us in both
            ],
        )


# Faults: each changes the times of a run; `chance` says at which size.


def disturbed(times: Floats, chance: np.random.Generator) -> None:
    """One size takes longer, in one column."""
    times[chance.integers(2), chance.integers(1, times.shape[1] - 1)] *= chance.uniform(2.0, 4.0)


def disturbed_twice(times: Floats, chance: np.random.Generator) -> None:
    """One size takes much longer, in both columns."""
    times[:, chance.integers(1, times.shape[1] - 1)] *= chance.uniform(3.0, 5.0)


def dip(times: Floats, chance: np.random.Generator) -> None:
    """From a size on a protocol with a higher latency, in both columns, which counts for less and less."""
    at = chance.integers(16, 22)  # 512 KiB to 16 MiB
    times[:, at:] += chance.uniform(2.5, 4.0) * times[:, at : at + 1]


def fall(times: Floats, chance: np.random.Generator) -> None:
    """From a large size on half the rate: a dip that does not recover."""
    at = chance.integers(24, 28)
    times[:, at:] *= chance.uniform(1.6, 2.2)


def slow_in_place(times: Floats, chance: np.random.Generator) -> None:
    """In place takes longer at all large sizes."""
    times[1, 14:] *= chance.uniform(1.25, 1.6)
