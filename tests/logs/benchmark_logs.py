"""Results as nccl-tests prints them, of a cost model with planted faults."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from collectives.contracts import CONTRACTS, REDUCING, ROOTED
from collectives.logs.benchmarks.curves import Floats
from collectives.logs.benchmarks.words import NAMES

SIZES = tuple(1 << power for power in range(3, 34))


class Run(NamedTuple):
    """One sweep: t = latency + factor * bytes / rate, with noise in both columns; then what faults do to them."""

    seed: int = 0
    collective: str = "all_reduce"
    ranks: int = 16
    hosts: tuple[str, ...] = ("n1", "n2")
    device: str = "NVIDIA B200"
    latency: float = 20e-6
    rate: float = 200e9
    noise: float = 0.03
    sizes: tuple[int, ...] = SIZES
    style: str = "new"  # or "old", "ancient"
    prefix: str = ""
    wrong: tuple[int, ...] = ()  # positions of sizes
    is_checked: bool = True
    fault: Callable[[Floats, np.random.Generator], None] | None = None  # changes times: 2 columns, one for each place

    @property
    def times(self) -> Floats:
        """Seconds, of shape (2, sizes)."""
        chance = np.random.default_rng(self.seed)
        n = np.array(self.sizes, float)
        line = self.latency + CONTRACTS[self.collective].factor(self.ranks) * n / self.rate
        times: Floats = line * np.exp(self.noise * chance.standard_normal((2, len(n))))
        if self.fault:
            self.fault(times, chance)
        return times


def text(run: Run, last: int = 0) -> str:
    """What nccl-tests prints; ``last``: the size that was asked for, if the run ends early."""
    lines = _heading(run, last or run.sizes[-1])
    lines += [_row(run, i, both) for i, both in enumerate(run.times.T)]
    if not last:
        lines += [f"# Out of bounds values : {len(run.wrong)} {'FAILED' if run.wrong else 'OK'}"]
        lines += ["# Avg bus bandwidth    : 70.1 ", "#"]
    return "\n".join(run.prefix + line for line in lines) + "\n"


def _heading(run: Run, last: int) -> list[str]:
    name = f"{NAMES[run.collective]}_perf"
    lines = [f"# Collective test starting: {name}"] if run.style == "new" else []
    lines += [
        f"# nThread 1 nGpus 1 minBytes {run.sizes[0]} maxBytes {last} step: 2(factor) warmup iters: 5 iters: 20",
        "#",
        "# Using devices",
    ]
    each = -(-run.ranks // len(run.hosts))
    for rank in range(run.ranks):
        who = f"Group  0 Pid {900 + rank:6d} on" if run.style == "new" else f"Pid {900 + rank:6d} on"
        lines.append(
            f"#  Rank {rank:2d} {who} {run.hosts[rank // each]:>10} device {rank % each:2d} [0x07] {run.device}"
        )
    if run.style == "ancient":
        part = "     time  algbw  busbw      res"
        return [*lines, f"#      bytes             N    type      op{part}{part}"]
    columns, wrong = ("redop    root", "#wrong") if run.style == "new" else ("redop", "error")
    part = f"time   algbw   busbw {wrong}"
    return [
        *lines,
        "#",
        "#                                    out-of-place                       in-place",
        f"#       size         count      type   {columns}     {part}     {part}",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]


def _row(run: Run, i: int, both: Floats) -> str:
    n = run.sizes[i]
    op = "sum" if run.collective in REDUCING else "none" if run.style == "new" else ""
    root = (0 if run.collective in ROOTED else -1) if run.style == "new" else ""
    row = f"{n:12d}  {n // 4:12d}  {'float':>8}  {op:>6}  {root:>6}"
    unit = 1e3 if run.style == "ancient" else 1e6
    for seconds in both:
        rate = n / seconds / 1e9
        wrong = ("7" if i in run.wrong else "0") if run.style == "new" else "2e-07"
        digits = f"{seconds * unit:.3f}" if run.style == "ancient" else f"{seconds * unit:.2f}"[:7].rstrip(".")
        checked = wrong if run.is_checked else "N/A"
        row += f"  {digits:>7}  {rate:6.2f}  {rate * CONTRACTS[run.collective].factor(run.ranks):6.2f}  {checked:>6}"
    return row


def report(run: Run) -> dict[str, Any]:
    """What nccl-tests writes with -J."""
    each = -(-run.ranks // len(run.hosts))
    devices = [
        {
            "rank": rank,
            "group": 0,
            "pid": 9,
            "hostname": run.hosts[rank // each],
            "device": 0,
            "device_info": run.device,
        }
        for rank in range(run.ranks)
    ]
    results = []
    for i, (n, both) in enumerate(zip(run.sizes, run.times.T, strict=True)):
        row: dict[str, Any] = {"size": n, "count": n // 4, "type": "float", "redop": "sum", "root": "    -1"}
        for name, seconds in zip(("out_of_place", "in_place"), both, strict=True):
            wrong = float(7 * (i in run.wrong)) if run.is_checked else None
            rate = n / seconds / 1e9
            rates = {"alg_bw": rate, "bus_bw": rate * CONTRACTS[run.collective].factor(run.ranks)}
            row[name] = {"time": seconds * 1e6, **rates, "nwrong": wrong}
        results.append(row | {"actual_iterations": 20, "experiment_name": ""})
    return {
        "version": 1,
        "start_time": "2026-11-01",
        "args": [f"./build/{NAMES[run.collective]}_perf", "-J", "a.json"],
        "env": ["HOME=/root"],
        "nccl_version": 22907,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": run.sizes[0],
            "maximum_bytes": run.sizes[-1],
            "step_factor": 2,
            "devices": devices,
        },
        "results": results,
        "out_of_bounds": {"count": len(run.wrong), "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 70.1, "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-11-01",
    }


def our_rows(run: Run, algorithm: str = "ring") -> str:
    """What `collectives bench --json` prints."""
    rows = []
    for i, (n, seconds) in enumerate(zip(run.sizes, run.times[0], strict=True)):
        us = seconds * 1e6
        row = {
            "collective": run.collective,
            "algorithm": algorithm,
            "segments": 1,
            "backend": "p2p",
            "where": "loopback",
        }
        row |= {"ranks": run.ranks, "bytes": n, "count": n // 4, "dtype": "float32", "op": "sum", "samples": [us]}
        row |= {"median_us": us, "low_us": us, "high_us": us, "algbw": n / us / 1e3, "busbw": 1.0}
        rows.append(json.dumps(row | {"wrong": 7 * (i in run.wrong), "device": "cpu"}))
    return "\n".join(rows) + "\n"


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
    """From a large size on half the rate."""
    at = chance.integers(24, 28)
    times[:, at:] *= chance.uniform(1.6, 2.2)


def slow_in_place(times: Floats, chance: np.random.Generator) -> None:
    """In place takes longer at all large sizes."""
    times[1, 14:] *= chance.uniform(1.25, 1.6)
