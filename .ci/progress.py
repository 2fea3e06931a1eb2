"""Run a command that takes minutes: show the lines that say how far it is, and a line where it is silent for long."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

SILENT_SECONDS = 15  # after which a line says that the command still runs


def run(
    command: Sequence[str | Path],
    what: str,
    shown: Callable[[str], str | None],
    *,
    log: IO[str] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> tuple[int, str]:
    """Return the exit code of a command, and all that it printed on either stream, which goes into ``log``, too.

    ``shown`` returns what is printed of a line, if anything. ``what`` names the command in the line
    that appears after `SILENT_SECONDS` without another one. Raises subprocess.TimeoutExpired after
    ``timeout`` seconds; then the command has been killed.
    """
    began = time.monotonic()
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(
        command, **streams, env=environment, text=True, errors="replace"
    ) as process:
        said, ended, last = list[str](), threading.Event(), [began]

        def say(text: str) -> None:
            last[0] = time.monotonic()
            print(f"    {text}", flush=True)

        def wait() -> None:
            while not ended.wait(1):
                now = time.monotonic()
                if timeout is not None and now > began + timeout:
                    process.kill()
                elif now > last[0] + SILENT_SECONDS:
                    say(f"{what}: {now - began:.0f} s so far")

        watch = threading.Thread(target=wait)
        watch.start()
        try:
            for line in process.stdout or ():
                said.append(line)
                if log:
                    log.write(line)
                    log.flush()
                if text := shown(line.rstrip()):
                    say(text)
        finally:
            ended.set()
            watch.join()
    if timeout is not None and time.monotonic() > began + timeout:
        raise subprocess.TimeoutExpired(command, timeout)
    return process.returncode, "".join(said)


def note(text: str) -> None:
    """Print a line about the environment, which is the first of the three parts of `make book`."""
    print(f"==> 1/3 environment: {text}", file=sys.stdout, flush=True)
