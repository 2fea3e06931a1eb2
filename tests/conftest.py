"""In CI nothing may be skipped but what needs a GPU: there a skip is a failure that names its reason."""

import os
from collections.abc import Generator

import pytest

from places import TASKS

CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}
MAY_SKIP = ("gpu", "multi_gpu")

# What the tests' own ranks do are tasks here, and in every process that the tests start.
os.environ["COLLECTIVES_TASKS"] = ",".join(sorted(path.stem for path in TASKS.glob("*.py")))


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure, keeping the reason."""
    expected_failure = hasattr(report, "wasxfail")
    if CI and report.skipped and not expected_failure:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI allows only with the marks {MAY_SKIP}: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not any(item.get_closest_marker(mark) for mark in MAY_SKIP):
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_skip(report)
    return report
