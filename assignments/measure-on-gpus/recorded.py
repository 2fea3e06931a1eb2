"""Write public/recorded/: times of NCCL on 16 GPUs, from rows of this repository, in the layout of nccl-tests.

python assignments/measure-on-gpus/recorded.py
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from collectives.core.contracts import CONTRACTS

ROWS = Path(__file__).parents[2] / "experiments/results/reference/measured-machines/samples.csv"
FOLDER = Path(__file__).parent / "public" / "recorded"
LABELS = {"ring": "ring", "tree": "tree", "free": "collnet"}
GPUS, EACH = 16, 4


def text(name: str) -> str:
    """Return a log in the layout of nccl-tests of one algorithm's rows."""
    label = LABELS[name]
    with ROWS.open(encoding="utf8", newline="") as file:
        wanted = ("marenostrum5", str(GPUS), label)
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["machine"], row["ranks"], row["algorithm"]) == wanted
        ]
    return "".join(f"{line}\n" for line in _lines(label, rows))


def _lines(label: str, rows: list[dict[str, str]]) -> Iterator[str]:
    """Yield the lines of a log of nccl-tests that has these rows."""
    yield f"# Recorded: all-reduce by NCCL with NCCL_ALGO={label} on MareNostrum 5, 14 April 2025, {GPUS // EACH} nodes"
    yield f"# of {EACH} H100. This file has the layout of nccl-tests, but nccl-tests did not print it: the times are"
    yield "# medians of the slowest rank over calls of a published measurement. No call was in place or checked."
    yield "# The type float is assumed: the measurement names bytes only."
    yield f"# Source: {rows[0]['source']}"
    if label == "collnet":
        yield "# By its times, NCCL ignored this value and chose by itself: see the chapter On Real GPUs."
    yield f"# nThread 1 nGpus 1 minBytes {rows[0]['bytes']} maxBytes {rows[-1]['bytes']} step: 8(factor)"
    yield "#"
    yield "# Using devices"
    for rank in range(GPUS):
        where = f"node{rank // EACH} device {rank % EACH:2d}"
        yield f"#  Rank {rank:2d} Group  0 Pid      0 on {where} [0000:00:00] NVIDIA H100"
    yield "#"
    part = f"{'time':>9}  {'algbw':>6}  {'busbw':>6}  #wrong"
    yield f"#{'out-of-place':>65}{'in-place':>33}"
    yield f"#{'size':>11}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6}  {part}  {part}"
    rates = f"{'(us)':>9}  {'(GB/s)':>6}  {'(GB/s)':>6}        "
    yield f"#{'(B)':>11}  {'(elements)':>12}  {'':>8}  {'':>6}  {'':>6}  {rates}  {rates}".rstrip()
    for row in rows:
        nbytes, us = int(row["bytes"]), float(row["median_us"])
        rate = nbytes / us / 1e3
        out = f"{us:9.2f}  {rate:6.2f}  {CONTRACTS['all_reduce'].factor(GPUS) * rate:6.2f}  {'N/A':>6}"
        inside = f"{'N/A':>9}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
        yield f"{nbytes:12d}  {nbytes // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}  {out}  {inside}"


if __name__ == "__main__":
    for name in LABELS:
        (FOLDER / f"{name}.log").write_text(text(name), encoding="utf8")
