"""The command line, run in this process; and other processes, for the time of a block."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from collectives.cli import main

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Its exit code, what it printed, and what it wrote to standard error."""
    try:
        code = main(list(arguments))
    except SystemExit as refused:  # by the parser
        code = int(refused.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that ends with the block, so that nothing waits for it after an assertion has failed."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
