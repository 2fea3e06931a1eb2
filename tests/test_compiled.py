"""The cache of compiled functions: a change in another file of the folder counts."""

import sys

import pytest

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
