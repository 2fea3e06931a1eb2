"""A rank's end: how an error is told, what is loaded, and what the words of the audit hook are."""

import errno
import socket
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from collectives_course import rank, wire


def answer(function: Any, *arguments: Any, watch: rank.Watch = rank.nullcontext) -> Any:
    module = ModuleType("submission")
    module.call = function  # type: ignore[attr-defined]
    task = {"file": "test_rank.py", "call": "call", "arguments": list(arguments), "size": 0}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return wire.unpack(rank._answer(task, wire.Connection(ours), lambda _file: module, watch))


class UnreadableError(BaseException):
    def __str__(self) -> str:
        raise self


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("no"), "crashed", "ValueError: no"),
        (SystemExit(0), "crashed", "SystemExit: 0"),
        (KeyboardInterrupt(), "crashed", "KeyboardInterrupt: "),
        (UnreadableError(), "crashed", "UnreadableError: its text cannot be read"),
        (NotImplementedError("add"), "unfinished", "NotImplementedError: add"),
        (rank.ForbiddenError("x is forbidden"), "blocked", "ForbiddenError: x is forbidden"),
        (OSError(errno.EPERM, "no"), "blocked", "PermissionError: [Errno 1] no"),
        (OSError(errno.EROFS, "no"), "blocked", "OSError: [Errno 30] no"),
        (OSError(errno.ENOSPC, "no"), "crashed", "OSError: [Errno 28] no"),
        (ModuleNotFoundError("no torch", name="torch.nn"), "blocked", "ModuleNotFoundError: no torch"),
        (ModuleNotFoundError("no x", name="x"), "crashed", "ModuleNotFoundError: no x"),
    ],
)
def test_errors_in_words(error: BaseException, kind: str, text: str) -> None:
    def f() -> None:
        raise error

    told = answer(f)
    assert (told["op"], told["kind"], told["text"]) == ("raise", kind, text)
    assert told["line"] == f.__code__.co_firstlineno + 1


def test_an_error_with_a_long_text_is_cut() -> None:
    def f() -> None:
        raise ValueError("x" * 10**7)

    assert len(answer(f)["text"]) < 2100


def test_a_value_that_cannot_be_sent_is_an_error_of_the_function() -> None:
    assert "cannot be sent" in answer(lambda: object())["text"]
    loop: list[Any] = []
    loop.append(loop)
    assert answer(lambda: loop)["kind"] == "crashed"


def test_what_was_tried_and_hushed_up() -> None:
    assert "a socket is forbidden" in answer(lambda: 1, watch=rank.watcher(["a socket"]))["text"]
    assert answer(lambda: 1, watch=rank.watcher([]))["value"] == 1


def test_a_thread_that_is_left() -> None:
    end = threading.Event()
    told = answer(lambda: threading.Thread(target=end.wait, name="mine").start(), watch=rank.watcher([]))
    end.set()
    assert told["text"] == "RuntimeError: the function has returned, its threads still run: mine"


def test_an_import_that_failed_fails_again(tmp_path: Path) -> None:
    load = rank.loader(tmp_path)
    (tmp_path / "broken_submission.py").write_text("x = 1 +\n")
    for _ in range(2):
        with pytest.raises(SyntaxError):
            load("broken_submission.py")
    with pytest.raises(FileNotFoundError):
        load("missing_submission.py")
    (tmp_path / "whole_submission.py").write_text("x = 1\n")
    assert load("whole_submission.py") is load("whole_submission.py")
