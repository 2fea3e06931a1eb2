"""Read logs of nccl-tests and traces of torch.profiler, and choose by them.

All times are in seconds and all sizes in bytes. Bus bandwidths are in GB/s, as nccl-tests prints
them.
"""

import numpy as np
from variant import SAMPLES


def parse(log):
    """Return the rows of a log of nccl-tests by ascending size: dicts with `bytes`, `seconds`, `in_place` and `wrong`.

    `seconds` and `in_place` are the times out of place and in place, and `wrong` counts the wrong
    elements of both. None stands for N/A; `wrong` is None if neither was checked. Rows of one size
    stay in their order.
    """
    # solution: the lines of numbers, in seconds and bytes
    rows = []
    for line in log.splitlines():
        fields = line.split()
        if len(fields) != 13 or not (fields[0].isdigit() and fields[1].isdigit()):
            continue
        seconds, in_place = (
            None if fields[i] == "N/A" else float(fields[i]) * 1e-6 for i in (5, 9)
        )
        wrong = [int(fields[i]) for i in (8, 12) if fields[i] != "N/A"]
        wrong = sum(wrong) if wrong else None
        rows.append(
            {"bytes": int(fields[0]), "seconds": seconds, "in_place": in_place, "wrong": wrong}
        )
    return sorted(rows, key=lambda row: row["bytes"])
    # end


def busbw(collective, p, nbytes, seconds):
    """Return the bus bandwidth in GB/s, as nccl-tests computes it, of a collective on p ranks.

    Collectives: all_reduce, all_gather, reduce_scatter, broadcast and all_to_all. `nbytes` is the
    size in nccl-tests' first column.
    """
    # solution: bytes over time, times the collective's factor
    others = (p - 1) / p
    factor = {"all_reduce": 2 * others, "broadcast": 1}.get(collective, others)
    return factor * nbytes / seconds / 1e9
    # end


def faster_up_to(first, second):
    """Return the bytes up to which `first` is faster than `second`, at this size and at each smaller one; 0 if at none.

    Both are lists of dicts with `bytes` and `seconds`, in any order. Where a size has several,
    their median counts. Sizes that only one of them has do not count.
    """
    # solution: medians by size, up to the first size that is lost
    both = [_medians((row["bytes"], row["seconds"]) for row in rows) for rows in (first, second)]
    up_to = 0
    for nbytes in sorted(both[0].keys() & both[1].keys()):
        if both[0][nbytes] >= both[1][nbytes]:
            break
        up_to = nbytes
    return up_to
    # end


# reference only
def _medians(pairs):
    by_key = {}
    for key, value in pairs:
        by_key.setdefault(key, []).append(value)
    return {key: float(np.median(values)) for key, values in by_key.items()}


# end


def exposed(events):
    """Return the seconds of communication during which nothing computes, in the events of a trace of torch.profiler.

    Only complete events count (`ph` is "X"); `ts` and `dur` are in microseconds. If any of them is
    a kernel (`cat` is "kernel"), kernels whose names begin with "nccl" communicate, and all others
    compute. Otherwise annotations (`cat` is "user_annotation") whose names begin with "gloo:"
    communicate, and operators (`cat` is "cpu_op") whose names begin with "aten::" compute. Events
    overlap, also those of one kind.
    """
    # solution: go through starts and ends in order, and count how many communicate and how many
    # compute
    events = [event for event in events if event["ph"] == "X"]
    kernels = [event for event in events if event["cat"] == "kernel"]
    if kernels:
        communicates = [event["name"].startswith("nccl") for event in kernels]
        counted = list(zip(kernels, communicates, strict=True))
    else:
        gloo = [
            e for e in events if e["cat"] == "user_annotation" and e["name"].startswith("gloo:")
        ]
        aten = [e for e in events if e["cat"] == "cpu_op" and e["name"].startswith("aten::")]
        counted = [(event, True) for event in gloo] + [(event, False) for event in aten]
    edges = [(e["ts"], 1, talks) for e, talks in counted] + [
        (e["ts"] + e["dur"], -1, talks) for e, talks in counted
    ]
    under_way, alone, last = {True: 0, False: 0}, 0.0, 0.0
    for time, change, talks in sorted(edges):
        if under_way[True] and not under_way[False]:
            alone += time - last
        under_way[talks] += change
        last = time
    return alone * 1e-6
    # end


def choose(rows):
    """Return the `bucket_cap_mb` of the least median step time.

    None if no bucket has `SAMPLES` samples or more.

    Each row is a dict with `bucket_cap_mb` and `seconds`, one sample. Buckets with fewer samples do
    not count.
    """
    # solution: medians of the buckets with enough samples
    counts = [row["bucket_cap_mb"] for row in rows]
    enough = [row for row in rows if counts.count(row["bucket_cap_mb"]) >= SAMPLES]
    medians = _medians((row["bucket_cap_mb"], row["seconds"]) for row in enough)
    return min(medians, key=medians.get, default=None)
    # end
