"""Wrong readers of logs and traces, wrong choices and reports."""

from course.wrong import Wrong

TIMES = "float(fields[i]) * 1e-6 for i in (5, 9)"
ANY_EXPOSED = "exposed overlaps exposed-cpu"

WRONG = [
    Wrong(
        "microseconds",
        "parse odd-lines",
        {TIMES: "float(fields[i]) for i in (5, 9)"},
        is_quick=True,
    ),
    Wrong("in place first", "parse odd-lines", {TIMES: "float(fields[i]) * 1e-6 for i in (9, 5)"}),
    Wrong(
        "in the log's order", "odd-lines", {'sorted(rows, key=lambda row: row["bytes"])': "rows"}
    ),
    Wrong("not checked is right", "odd-lines", {"sum(wrong) if wrong else None": "sum(wrong)"}),
    Wrong("wrong in place is not counted", "odd-lines", {"for i in (8, 12)": "for i in (8,)"}),
    Wrong(
        "N/A is a number", "odd-lines=crashed", {'None if fields[i] == "N/A" else float': "float"}
    ),
    Wrong(
        "comments are rows",
        "odd-lines",
        {"fields = line.split()": 'fields = line.lstrip("#").split()'},
    ),
    Wrong("one way", "busbw", {"2 * others": "others"}, is_quick=True),
    Wrong("a root sends a share", "busbw", {'"broadcast": 1': '"broadcast": others'}),
    Wrong("GiB", "busbw", {"seconds / 1e9": "seconds / 2**30"}),
    Wrong("the last win", "faster-up-to", {"            break\n": "            continue\n"}),
    Wrong(
        "a list of sizes",
        "faster-up-to",
        {"    return up_to\n": "    return np.array([up_to, up_to])\n"},
    ),
    Wrong("trusts means", "faster-up-to choose", {"np.median(values)": "np.mean(values)"}),
    Wrong(
        "hides nothing",
        ANY_EXPOSED,
        {"under_way[True] and not under_way[False]": "under_way[True]"},
        is_quick=True,
    ),
    Wrong("milliseconds", ANY_EXPOSED, {"alone * 1e-6": "alone * 1e-3"}),
    Wrong(
        "adds calls up",
        "overlaps exposed-cpu",
        {"alone += time - last": "alone += (time - last) * under_way[True]"},
    ),
    Wrong(
        "copies compute",
        "overlaps",
        {'if event["cat"] == "kernel"': 'if event["cat"] in ("kernel", "gpu_memcpy")'},
    ),
    Wrong("a beginning is a call", "overlaps", {'if event["ph"] == "X"': 'if "dur" in event'}),
    Wrong("GPUs only", "exposed-cpu", {"if kernels:": "if True:"}),
    Wrong(
        "the call computes",
        "exposed-cpu",
        {'startswith("aten::")': 'startswith(("aten::", "c10d::"))'},
    ),
    Wrong("any number of samples", "choose", {">= SAMPLES": ">= 1"}),
    Wrong(
        "the largest bucket",
        "choose",
        {"min(medians, key=medians.get, default=None)": "max(medians, default=None)"},
    ),
    Wrong(
        "an invented size",
        "report",
        {'"tree_up_to":8388608': '"tree_up_to":65536'},
        file="report.json",
        is_quick=True,
    ),
    Wrong(
        "another bucket",
        "report",
        {'"best":': '"best":9'},
        file="report.json",
        says={"report": "best bucket"},
    ),
    Wrong("no number", "report", text='{"version": 1, "logs": NaN}', file="report.json"),
]
