"""Measure on this machine and write report.json: `python report.py`, in the folder of your lab.py and ranks.py.

Ring against tree: from ring.log, tree.log and free.log of this folder; without a ring.log, from
those of recorded/.
"""

import json
import os
import re
import statistics
import sys
from pathlib import Path

import torch
from lab import busbw, choose, exposed, faster_up_to, parse
from variant import SAMPLES

import ranks
from collectives.bench import Settings, bench
from collectives.bench.results import record

# A layer has 4 MiB on GPUs, and 1 MiB otherwise.
CAPS = [1, 5, 25, 100] if ranks.ON_GPUS else [1, 2, 3, 25]
SIZES = [1024 * 4**power for power in range(7)]


def log(name):
    """Return a log of this folder, or the recorded one where this folder has no ring.log."""
    source, folder = ("measured", ".") if Path("ring.log").exists() else ("recorded", "recorded")
    return {"source": source, "text": Path(folder, f"{name}.log").read_text(encoding="utf8")}


def ring_against_tree(logs):
    """Return times and bus bandwidths of the three logs, and the size up to which the tree is faster than the ring."""
    p = len(re.findall(r"^# +Rank ", logs["ring"]["text"], re.MULTILINE))
    found = {name: parse(each["text"]) for name, each in logs.items()}
    rows = []
    for name, table in found.items():
        for row in table:
            nbytes, seconds = row["bytes"], row["seconds"]
            rate = busbw("all_reduce", p, nbytes, seconds)
            rows.append({"algorithm": name, "bytes": nbytes, "seconds": seconds, "busbw": rate})
    return {"ranks": p, "rows": rows, "tree_up_to": faster_up_to(found["tree"], found["ring"])}


def one_shot():
    """Return samples of one-shot and ring at each size: on GPUs by torch and NCCL, else in this machine's memory."""
    if ranks.ON_GPUS:
        os.environ["NCCL_ALGO"] = "Ring"
        rows, p = ranks.start("one_shot", SIZES, 3 * SAMPLES), ranks.RANKS
        del os.environ["NCCL_ALGO"]
        command = "torch.ops.symm_mem.one_shot_all_reduce; NCCL_ALGO=Ring"
    else:
        p, names = 4, ["one_shot", "ring"]
        found = bench(
            [Settings(algorithms=names, ranks=p, bytes=SIZES, repetitions=3 * SAMPLES)]
        ).rows
        samples = {
            (row["algorithm"], row["bytes"]): [us * 1e-6 for us in row["samples"]] for row in found
        }
        rows = [{"bytes": n} | {name: samples[name, n] for name in names} for n in SIZES]
        command = "collectives bench all_reduce one_shot ring -p 4"
    single = []
    for name in ("one_shot", "ring"):
        samples_of = []
        for row in rows:
            samples_of += [{"bytes": row["bytes"], "seconds": seconds} for seconds in row[name]]
        single.append(samples_of)
    return {"ranks": p, "command": command, "rows": rows, "one_shot_up_to": faster_up_to(*single)}


def counted(events):
    """Return the events of a trace that may count, in short: of kernels if there are any, else of gloo and ATen."""
    whole = [event for event in events if event.get("ph") == "X"]
    kernels = [event for event in whole if event["cat"] == "kernel"]
    shown = kernels or [each for each in whole if each["name"].startswith(("gloo:", "aten::"))]
    first = min(each["ts"] for each in shown)
    times = [{"ts": round(each["ts"] - first, 3), "dur": each["dur"]} for each in shown]
    names = [{"ph": "X", "cat": each["cat"], "name": each["name"][:40]} for each in shown]
    return [name | time for name, time in zip(names, times, strict=True)]


def buckets():
    """Return steps by size of buckets, the traced step whose exposed communication is the median, and the best size."""
    rows = ranks.start("buckets", CAPS, 3 * SAMPLES)
    for row in rows:
        traces = sorted([counted(events) for events in row.pop("traces")], key=exposed)
        row["events"] = traces[len(traces) // 2]
        row["exposed"] = exposed(row["events"])
    single = []
    for row in rows:
        cap = row["bucket_cap_mb"]
        single += [{"bucket_cap_mb": cap, "seconds": seconds} for seconds in row["steps"]]
    command = "DistributedDataParallel on " + ("NCCL" if ranks.ON_GPUS else "gloo")
    return {"ranks": ranks.RANKS, "command": command, "rows": rows, "best": choose(single)}


def main():
    logs = {name: log(name) for name in ("ring", "tree", "free")}
    gpu = torch.cuda.get_device_name(0) if ranks.ON_GPUS else None
    report = {
        "version": 1,
        "units": {"bytes": "B", "seconds": "s", "busbw": "GB/s", "ts": "us"},
        "environment": {"processor": record()["processor"], "gpu": gpu, "torch": torch.__version__},
        "logs": logs,
        "ring_against_tree": ring_against_tree(logs),
        "one_shot": one_shot(),
        "buckets": buckets(),
    }
    Path("report.json").write_text(
        json.dumps(report, separators=(",", ":")) + "\n", encoding="utf8"
    )
    sys.stdout.write("".join(f"{line}\n" for line in summary(report)))


def summary(report):
    """Yield the choices, and the figures behind them, as lines."""
    logs, size = report["logs"], report["ring_against_tree"]["tree_up_to"]
    yield f"tree faster than ring up to {size:,} B ({logs['tree']['source']})"
    yield f"one-shot faster than ring up to {report['one_shot']['one_shot_up_to']:,} B"
    for row in report["buckets"]["rows"]:
        step = 1e3 * statistics.median(row["steps"])
        exposure = f"{1e3 * row['exposed']:.2f} ms exposed"
        yield f"buckets of {row['bucket_cap_mb']:g} MB: a step takes {step:.2f} ms; {exposure}"
    yield f"best: {report['buckets']['best']:g} MB"


if __name__ == "__main__":
    main()
