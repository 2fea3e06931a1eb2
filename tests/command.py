"""The command line, run in this process.

And other processes, of which nothing is left after a block.
"""

import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from collectives.cli import main
from places import PATIENCE, comes_true

Capture = pytest.CaptureFixture[str]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Its exit code, what it printed, and what it wrote to standard error."""
    try:
        code = main(list(arguments))
    except SystemExit as refused:  # by the parser
        code = int(refused.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@contextmanager
def started(
    command: list[Any], *, env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """A process that is killed at the end of the block, however that ends, with all that it has started.

    They are known by a variable, which also those inherit whose parent has gone. Their session is
    their own, so that Ctrl-C and a terminal that closes reach the tests alone.
    """
    mark = f"STARTED_BY_A_TEST_{secrets.token_hex(8)}"
    own = {**(os.environ if env is None else env), mark: "1"}
    with _heeding_hangups():
        process = subprocess.Popen(command, env=own, start_new_session=True, **options)
    with process:
        try:
            yield process
        finally:
            process.kill()
            assert comes_true(lambda: not _killed(mark)), (
                f"{command} has started what cannot be killed"
            )


def finished(
    command: list[Any],
    *,
    given: str | None = None,
    seconds: float = PATIENCE,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """A command that has ended by itself, and what it wrote.

    Its standard input is what is given.
    """
    stdin = {} if given is None else {"stdin": subprocess.PIPE}
    with started(command, **PIPES | stdin | options) as process:
        out, err = process.communicate(given, timeout=seconds)
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    assert not (check and done.returncode), (
        f"{command} ended with exit code {done.returncode}:\n{out}\n{err}"
    )
    return done


def having(variable: str, value: str) -> list[int]:
    """The processes on this machine that have inherited this variable with this value: none where is no /proc."""
    wanted, found = f"{variable}={value}".encode(), []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has just ended, or is another user's
            if wanted in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
    return found


def _killed(mark: str) -> list[int]:
    """Those that lived until now."""
    found = having(mark, "1")
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


@contextmanager
def _heeding_hangups() -> Iterator[None]:
    """Let SIGHUP end what this block starts, also under nohup: a new program has no handler, and the default again."""
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
