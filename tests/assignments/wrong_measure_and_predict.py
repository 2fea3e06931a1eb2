"""Wrong measurements, fits, predictions and reports."""

from assignments.wrong import Wrong

WRONG = [
    Wrong(
        "times the way back",
        {"samples": "failed", "whole": "failed"},
        {"(comm.time() - start) / 2": "comm.time() - start"},
    ),
    Wrong("sizes that are not allowed", {"rules": "failed"}, {"* UNIT for power": "* (UNIT + 1) for power"}),
    Wrong(
        "trusts means",
        {"noisy-fit": "failed", "whole": "failed"},
        {"np.median(seconds": "np.mean(seconds"},
        is_quick=True,
    ),
    Wrong(
        "one tree",
        {"crossing": "failed", "simulator": "failed"},
        {"2 * math.sqrt(2 * (height - 1))": "6 * math.sqrt(2 * (height - 1))"},
    ),
    Wrong("always a crossing", {"no-crossing": "failed"}, {"max(0.0, one_segment)": "abs(one_segment)"}),
    Wrong(
        "takes the next size",
        {"measured": "failed"},
        {"share = ahead[last] / (ahead[last] - ahead[last + 1])": "share = 1"},
    ),
    Wrong(
        "an invented crossing",
        {"report": "failed"},
        {'"predicted_crossing": 0.0': '"predicted_crossing": 65536.0'},
        file="report.json",
        is_quick=True,
    ),
    Wrong(
        "no number", {"report": "failed"}, text='{"version": 1, "alpha": NaN, "messages": [[[[]]]]}', file="report.json"
    ),
]
