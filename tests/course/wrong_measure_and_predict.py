"""Wrong measurements, fits, predictions and reports."""

from course.wrong import Wrong

WRONG = [
    Wrong(
        "times the way back", "samples whole", {"(comm.time() - start) / 2": "comm.time() - start"}
    ),
    Wrong("sizes that are not allowed", "rules", {"* UNIT for power": "* (UNIT + 1) for power"}),
    Wrong(
        "trusts means", "noisy-fit whole", {"np.median(seconds": "np.mean(seconds"}, is_quick=True
    ),
    Wrong(
        "one tree",
        "crossing simulator",
        {"2 * math.sqrt(2 * (height - 1))": "6 * math.sqrt(2 * (height - 1))"},
    ),
    Wrong("always a crossing", "no-crossing", {"max(0.0, one_segment)": "abs(one_segment)"}),
    Wrong(
        "takes the next size",
        "measured",
        {"share = ahead[last] / (ahead[last] - ahead[last + 1])": "share = 1"},
    ),
    Wrong(
        "no weights",
        "noisy-fit",
        {
            "np.stack([1 / typical, distinct / typical], axis=1)": "np.stack([distinct**0, distinct], axis=1)",
            "np.ones(len(distinct))": "typical",
        },
    ),
    Wrong(
        "never a crossing",
        "crossing simulator",
        {"steps, middle = 2": "return 0.0\n    steps, middle = 2"},
    ),
    Wrong("the largest size for infinity", "measured", {"return math.inf": "return sizes[-1]"}),
    Wrong(
        "the first crossing",
        "measured",
        {
            "last = int(np.flatnonzero(ahead > 0)[-1])": "last = next((i for i in range(len(ahead) - 1) "
            "if ahead[i] > 0 >= ahead[i + 1]), len(ahead) - 1)"
        },
    ),
    Wrong(
        "alpha twice",
        "exact-fit noisy-fit whole",
        {"return float(alpha), float(beta)": "return 2 * float(alpha), float(beta)"},
        says={"exact-fit": "expected within 0.1% of"},
    ),
    Wrong(
        "an invented crossing",
        "report",
        {'"predicted_crossing": 0.0': '"predicted_crossing": 65536.0'},
        file="report.json",
        is_quick=True,
    ),
    Wrong(
        "no number",
        "report",
        text='{"version": 1, "alpha": NaN, "messages": [[[[]]]]}',
        file="report.json",
    ),
]
