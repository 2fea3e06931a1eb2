"""Standard output, and how a command ends: by a signal, a time limit, or a closed pipe, always with one line."""

import contextlib
import faulthandler
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from collectives.processes import open_streams

# How long a command may take to clean up after a signal.
GRACE_SECONDS = 30.0

# What ends a command, and why; the alarm is that of `limit`, which says its own.
_why = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up", signal.SIGALRM: "late"}

# Called at once when a signal arrives.
_at_once: list[Callable[[], object]] = []


class Ended(KeyboardInterrupt):
    """The command has to end now, with this exit code; a KeyboardInterrupt, because libraries let that pass."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


@contextmanager
def signals() -> Iterator[None]:
    """Raise `Ended` in the block on Ctrl-C, SIGTERM, SIGHUP and a `limit`, so that ranks and files are cleaned up.

    Further signals are ignored. If the clean-up takes longer than `GRACE_SECONDS`, the process exits.
    """
    main, timer = os.getpid(), signal.getitimer(signal.ITIMER_REAL)
    handlers = {number: signal.getsignal(number) for number in _why}

    def on_signal(number: int, _: FrameType | None) -> NoReturn:
        if os.getpid() != main:  # a forked child: it has nothing to clean up
            os._exit(128 + number)
        for act in _at_once:
            act()
        ended = Ended(_why[signal.Signals(number)], 1 if number == signal.SIGALRM else 128 + number)

        def at_last(*_: object) -> NoReturn:
            os.write(2, f"collectives: {ended}\n".encode())
            os._exit(ended.code)

        for each in _why:
            signal.signal(each, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, at_last)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        raise ended

    for number, handler in handlers.items():
        # What a shell puts in the background ignores Ctrl-C, and what nohup starts ignores SIGHUP.
        if handler != signal.SIG_IGN or number == signal.SIGALRM:
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def limit(seconds: float, what: str) -> Iterator[None]:
    """Raise `Ended` in the block after this many seconds, within `signals`.

    Code that never returns to Python is ended later, with a traceback of where it was.
    """
    _why[signal.SIGALRM] = f"{what}: not done within {seconds:g} s (--timeout)"
    faulthandler.dump_traceback_later(seconds + 2 * GRACE_SECONDS, exit=True, file=2)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def killing_children(before: Callable[[], object] = lambda: None) -> Iterator[None]:
    """In the block a signal first kills our child processes, because a notebook's kernel would print a traceback.

    Logging is disabled for the same reason. ``before`` is called before the first is killed. The block ends when the
    children's own children are gone.
    """
    import psutil  # type: ignore[import-untyped]

    below: list[psutil.Process] = []

    def kill() -> None:
        before()
        logging.disable()
        below.extend(psutil.Process().children(recursive=True))
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    _at_once.append(kill)
    try:
        yield
    finally:
        _at_once.remove(kill)
        for orphan in psutil.wait_procs(below, timeout=GRACE_SECONDS / 2)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                orphan.kill()


def open_standard_streams() -> None:
    """Open a closed standard stream on /dev/null, so that no file or socket gets its descriptor."""
    open_streams()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def out(text: str) -> None:
    """Print data on standard output. Raises RuntimeError if that fails, as on a full disk."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop(1)
        raise RuntimeError(f"cannot write to standard output: {error.strerror}") from None


def out_row(row: dict[str, Any], text: str, as_json: bool) -> None:
    """Print a row: as one JSON object on one line, or as text."""
    out(json.dumps(row) if as_json else text)


def failed(error: BaseException | str, code: int) -> int:
    """Say in one line why the command failed; returns its exit code."""
    text = "; ".join([str(error) or "interrupted", *getattr(error, "__notes__", ())])
    with contextlib.suppress(OSError):
        print(f"collectives: {text}", file=sys.stderr, flush=True)
    return code


def reader_has_gone() -> bool:
    """Whether the reader of standard output or standard error has closed it, as ``head`` does."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(what & (select.POLLERR | select.POLLHUP) for _, what in poll.poll(0))


def flush() -> None:
    """Flush standard output and error. What has no reader is dropped, so that Python does not retry at exit.

    Raises SystemExit(1), after one line, if a stream cannot be written, for example on a full disk.
    """
    for number, stream in enumerate((sys.stdout, sys.stderr), start=1):
        try:
            stream.flush()
        except BrokenPipeError:
            _drop(number)
        except OSError as error:
            _drop(number)
            raise SystemExit(failed(f"cannot write to standard output: {error.strerror}", 1)) from None


def _drop(number: int) -> None:
    """Redirect this standard stream to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
