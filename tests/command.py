"""The command line, run in this process."""

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
