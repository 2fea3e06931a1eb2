"""Three tiers of tests; and in CI nothing is skipped but tests that need a GPU.

A test without a mark is a unit test, and starts no Python process. `make test` adds those marked
``integration``, `make test-all` those marked ``extended``. A test marked ``alone`` runs beside no
test of another worker. A test that uses the fixture ``sandbox`` or ``allowed`` needs what README's
commands do not install: where that is absent, it is skipped with the reason, and the last line of a
run sums the reasons up.
"""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from browsers import CHROMIUM, QUIET
from collectives import emulator
from places import ROOT, TASKS

CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}
# Doctests are collected from all files, and two files of one name cannot be imported as modules.
collect_ignore = ["conftest.py", "book/conftest.py"]
MAY_SKIP = ("gpu", "multi_gpu")
BEYOND_UNIT = ("integration", "extended")
# Fixtures that skip where an optional program is absent; a test that uses one is marked `needs`.
NEEDS = frozenset({"allowed", "sandbox"})

# What the tests' own ranks do are tasks here, and in every process that the tests start. One path
# for all: for another one `launch` starts another fork server, which imports torch.
os.environ["COLLECTIVES_TASKS"] = ",".join(sorted(path.stem for path in TASKS.glob("*.py")))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(TASKS), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# A container may forbid bytecode. Each of the hundreds of processes that the tests start would
# compile all of torch anew, for three seconds; and pytest all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Examples that take long say that the machine is busy, and nothing of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell that starts the tests in its background has them ignore Ctrl-C, and every process that
# they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# These tests may be started by a test, which has had its turn.
WITHIN_A_TEST = "PYTEST_CURRENT_TEST" in os.environ

# Doctests, which have no marks of their own.
OF_PROCESSES = ("collectives.emulator.allowed", "collectives.processes.workers")

# The unit tests that run now: one or none.
unit_tests: list[str] = []


def has(item: pytest.Item, *marks: str) -> bool:
    return any(item.get_closest_marker(mark) for mark in marks)


def refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a unit test that starts ranks, hosts, a kernel or the command: all of them are Python processes."""
    command = [os.fspath(word) for word in arguments[1]] if event == "subprocess.Popen" else []
    python = any(isinstance(word, str) and Path(word).name.startswith("python") for word in command)
    if unit_tests and (event == "os.fork" or python):
        pytest.fail(f"{unit_tests[0]} starts a process: mark it with pytest.mark.integration")


sys.addaudithook(refuse_processes)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; a test that uses it is marked `browsers.needs_browser`."""
    from playwright.sync_api import sync_playwright  # unit tests do without it

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def allowed() -> None:
    """Skip where this machine allows no emulated hosts."""
    if reason := emulator.allowed():
        pytest.skip(f"no emulated hosts: {reason}")


@pytest.fixture(scope="session")
def sandbox() -> None:
    """Skip where submissions cannot be run in a sandbox."""
    from collectives_course import sandbox  # most tests do without the grader

    if reason := sandbox.unavailable():
        pytest.skip(f"no sandbox: {reason}")


@contextmanager
def turn(alone: bool) -> Iterator[None]:
    """Wait until no other worker's test has to be alone, and if this one has to, until no other runs."""
    if WITHIN_A_TEST:
        yield
        return
    with (ROOT / "Makefile").open() as door, (ROOT / "pyproject.toml").open() as room:
        flock(door, LOCK_EX)  # keeps new tests out while one waits to be alone
        flock(room, LOCK_EX if alone else LOCK_SH)
        flock(door, LOCK_UN)
        try:
            yield
        finally:
            flock(room, LOCK_UN)  # a forked child could keep the file open


@pytest.hookimpl(tryfirst=True)  # before ``-m`` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name in OF_PROCESSES:
            item.add_marker("integration")
        if NEEDS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("needs")


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end, so that no garbage collection looks at them again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with turn(has(item, "alone")):
        unit_tests[:] = [] if has(item, *BEYOND_UNIT) else [item.nodeid]
        try:
            return (yield)
        finally:
            unit_tests.clear()


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure, keeping the reason."""
    expected_failure = hasattr(report, "wasxfail")
    if CI and report.skipped and not expected_failure:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI allows only with the marks {MAY_SKIP}: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not has(item, *MAY_SKIP):
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after pytest's own last line
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and (line := not_tested(reporter.stats.get("skipped", []))):
        reporter.write_line(line)
    return result


def not_tested(skipped: list[pytest.TestReport | pytest.CollectReport]) -> str:
    """One line: how many tests were skipped, for each reason."""
    reasons = Counter(
        str(each.longrepr[2]).removeprefix("Skipped: ")
        for each in skipped
        if isinstance(each.longrepr, tuple)
    )
    return (
        "not tested here: "
        + "; ".join(f"{count} ({reason})" for reason, count in reasons.most_common())
        if reasons
        else ""
    )
