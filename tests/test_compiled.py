"""The cache of compiled functions: any change of a source counts, no date does, and processes do not mix up types."""

import os
import sys
import threading
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from collectives.compiled import CacheFiles
from command import finished

CALLER = """
from callee import inner
from collectives.compiled import compiled

@compiled
def outer(a):
    return inner(a)

print(outer(5))
"""
CALLEE = """
from collectives.compiled import compiled

@compiled
def inner(a):
    return a + {}
"""


class Stepped(CacheFiles):
    """The files of a process that takes its steps in a given order with another's."""

    def __init__(self, folder: Path, key: str, order: list[str], turn: threading.Condition) -> None:
        super().__init__(str(folder), "f", "sources")
        self.key, self.order, self.turn = key, order, turn

    def step(self, act: Any, *arguments: Any) -> Any:
        with self.turn:
            self.turn.wait_for(lambda: self.order[:1] in ([self.key], []))
            try:
                done = act(*arguments)
                check(Path(self._cache_path))
            except BaseException:
                self.order.clear()  # the other one need not wait
                raise
            finally:
                del self.order[:1]
                self.turn.notify_all()
        return done

    def _load_index(self) -> Any:
        return self.step(super()._load_index)

    def _save_index(self, index: Any) -> None:
        self.step(super()._save_index, index)

    def _save_data(self, name: str, data: Any) -> None:
        self.step(super()._save_data, name, data)


def check(folder: Path) -> list[str]:
    """Return the keys whose code a reader finds, which is theirs."""
    reader = CacheFiles(str(folder), "f", "sources")
    seen = {key: reader.load(key) for key in "AB"}
    assert seen.items() <= {("A", "code of A"), ("B", "code of B"), ("A", None), ("B", None)}
    return [key for key, code in seen.items() if code]


@pytest.mark.parametrize("order", sorted({"".join(each) for each in permutations("AAABBB")}))
@pytest.mark.parametrize("before", ["nothing", "old code"])
def test_two_processes_that_compile_at_once_never_give_another_type_s_code(
    order: str, before: str, tmp_path: Path
) -> None:
    if before == "old code":
        old = CacheFiles(str(tmp_path), "f", "sources before")
        for key in "AB":
            old.save(key, "old code")
    turns, turn, failed = [*order], threading.Condition(), []
    writers = [Stepped(tmp_path, key, turns, turn) for key in "AB"]

    def save(one: Stepped) -> None:
        try:
            one.save(one.key, f"code of {one.key}")
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=save, args=(one,), daemon=True) for one in writers]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not failed
    assert check(tmp_path) or before == "old code"  # whose removal may take what is new, too
    assert len(list(tmp_path.glob("*.nbc"))) <= 2  # no old code is left


@pytest.mark.integration
def test_a_change_in_a_called_function_of_another_file_is_seen(tmp_path):
    (tmp_path / "caller.py").write_text(CALLER)

    def run(number):
        source = tmp_path / "callee.py"
        if not source.exists() or CALLEE.format(number) != source.read_text():
            source.write_text(CALLEE.format(number))
        command = [sys.executable, "caller.py"]
        done = finished(command, cwd=tmp_path, check=True)
        return int(done.stdout), {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbi")}

    first, cached = run(1)
    again, unchanged = run(1)
    other, renewed = run(100)
    assert (first, again, other) == (6, 6, 105)
    assert cached
    assert unchanged == cached
    assert set(renewed) == set(cached)
    assert len(list(tmp_path.rglob("*.nbc"))) == len(cached)  # old code goes
    for source in tmp_path.glob("*.py"):  # a host whose clock was wrong
        os.utime(source, (2**32, 2**32))
    assert run(100) == (105, renewed)
