"""Python in the pages, without a page: what the build brings for it. tests/book/test_live_browser.py opens pages."""

import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from collectives.machine import machine, presets
from places import ROOT, script

EXTENSION = ROOT / "chapters" / "_ext"
FETCH = script("page_python")
MACHINES = [*presets(), "mesh:3x3", "torus:4x4,2us,3GB/s", "5ms,25MB/s"]
# Fields of a machine, each with what pydantic says against it.
WRONG: list[dict[str, Any]] = [
    {"name": "x"},
    {"name": "x", "network": {"latency": "5 parsecs", "rate": "25GB/s"}},
    {"name": "x", "netwrk": 1, "network": {"rate": "1GB/s"}},
    {"name": "x", "ranks_per_node": 8, "network": {"rate": "1GB/s"}},
    {"name": "x", "ranks_per_node": 0, "network": {"rate": "1GB/s"}},
    {"name": "x", "network": {"rate": "0GB/s"}},
    {"name": "x", "network": {"rate": 5}},
    {"name": "x", "network": {"rate": "1GB/s"}, "slower": {"-1": 2}},
    {
        "name": "x",
        "network": {"rate": "1GB/s"},
        "levels": [{"name": "a", "nodes": 4}, {"nodes": 6}],
    },
]
# In a process of its own, because the module takes pydantic's name.
WITHOUT_PYDANTIC = """
import json, sys
sys.path.insert(0, sys.argv[1])
from collectives import machine
names, wrong = json.loads(sys.argv[2])
assert "in_page" in sys.modules["pydantic"].__file__

def said(fields):
    try:
        machine._parse_machine(fields, "x")
    except ValueError as error:
        return str(error)

print(json.dumps([[repr(machine.machine(name)) for name in names], [said(each) for each in wrong]]))
"""


@pytest.fixture(autouse=True)
def _extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXTENSION))


def said(fields: dict[str, Any]) -> str:
    from collectives import machine as machines

    with pytest.raises(ValueError) as caught:  # noqa: PT011
        machines._parse_machine(fields, "x")
    return str(caught.value)


@pytest.mark.integration
def test_machines_are_the_same_without_pydantic() -> None:
    asked = json.dumps([MACHINES, WRONG])
    command = [sys.executable, "-c", WITHOUT_PYDANTIC, str(EXTENSION / "in_page"), asked]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    made, refused = json.loads(done.stdout)
    assert made == [repr(machine(name)) for name in MACHINES]
    for fields, there in zip(WRONG, refused, strict=True):
        here = said(fields)
        assert there is not None, fields
        assert there.split(",")[0] == here.split(",")[0], fields


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        # What a cell needs comes before it, also through another one; what it defines anew is not needed.
        (
            [
                "p = 4",
                "from collectives import ALGORITHMS",
                "ring = ALGORITHMS['all_reduce', 'ring'](p)",
                "p = 5",
            ],
            [[], [], [0, 1], []],
        ),
        (["rows = []", "rows[0] = 1", "x = 2", "[x for x in rows]"], [[], [0], [], [0, 1]]),
        (["n = 1", "def f(n):\n    return n\nf(2)", "n += 1", "print(n)"], [[], [], [0], [0, 2]]),
    ],
)
def test_a_cell_needs_those_before_it_whose_names_it_reads(
    cells: list[str], expected: list[list[int]]
) -> None:
    from book_site import live

    assert [cell.needs for cell in live.analyzed([*map(new_code_cell, cells)])] == expected


def test_a_cell_is_live_if_all_that_it_needs_is_in_a_page() -> None:
    from book_site import live

    cells = [
        new_markdown_cell("text"),
        new_code_cell("import torch", metadata={"tags": ["remove-cell"]}),
        new_code_cell("torch.ones(1)"),
        new_code_cell("from collectives.simulator.simulation import simulate"),
        new_code_cell("from collectives.bench.results import read\nrows = read('x')"),
        new_code_cell("len(rows)"),
        new_code_cell("open('../experiments/x')"),
    ]
    found = [(it.number, it.is_shown, it.reason) for it in live.analyzed(cells)]
    assert found == [
        (1, False, "need torch"),
        (2, True, "need torch"),
        (3, True, ""),
        (4, True, "read recorded rows"),
        (5, True, "read recorded rows"),
        (6, True, "read recorded rows"),
    ]


def test_a_cell_that_others_need_imports_what_is_used_then_on_the_same_lines() -> None:
    from book_site import live

    sources = [
        "import pandas\nfrom a import (\n    b,\n)\nimport c, d\nx = b(1)\npandas.show(x)",
        "c(x)",
    ]
    first, last = live.analyzed([*map(new_code_cell, sources)])
    code = live.code_of(first, [first, last])
    assert code["quiet"] == sources[0].replace("import pandas", "")
    assert live.code_of(first, [first])["quiet"] == code["quiet"].replace("import c, d", "")
    assert live.code_of(last, [first, last])["needs"] == [0]


def test_every_exercise_of_a_page_is_there_and_its_first_code_is_wrong() -> None:
    from in_page import exercises

    handouts = (ROOT / "assignments").glob("*/handout.md")
    named = dict[str, str]()
    for path in [*(ROOT / "chapters").glob("*.md"), *handouts]:
        found = re.findall(r'<check-answer exercise="(.+?)">', path.read_text("utf8"))
        named |= dict.fromkeys(found, path.relative_to(ROOT).with_suffix("").as_posix())
    assert sorted(named) == sorted(exercises.EXERCISES)
    assert len(named) >= 20
    for name, asked in exercises.EXERCISES.items():
        if isinstance(asked, exercises.Assignment):
            assert named[name] == f"assignments/{asked.name}/handout"
        else:
            assert named[name] == f"chapters/{name.rpartition('-')[0]}"
        if isinstance(asked, exercises.Function):
            assert judged(asked.start, asked)


def judged(code: str, asked: Any) -> str:
    from in_page import exercises

    own: dict[str, Any] = {}
    exec(code, own)
    return exercises.function_wrong(asked, own["steps"])


def test_a_number_is_right_alone_and_a_wrong_one_is_not_told_the_right_one() -> None:
    from in_page import exercises

    for asked in exercises.EXERCISES.values():
        if not isinstance(asked, tuple) or not isinstance(asked[0], exercises.Number):
            continue
        right = [f"{float(number.truth()):.4g}" for number in asked]
        assert not exercises.numbers_wrong(asked, right)
        for nth, number in enumerate(asked):
            for factor in (0.5, 1.3):
                value = f"{float(number.truth()) * factor + (factor - 1):.4g}"
                told = exercises.numbers_wrong(asked, [*right[:nth], value, *right[nth + 1 :]])
                assert told.startswith(number.label)
                assert right[nth] not in told.removeprefix(number.label).split()
        assert "expected a number" in exercises.numbers_wrong(asked, ["ring"] * len(asked))


def test_a_function_and_a_schedule_are_judged_by_what_they_do() -> None:
    from in_page import exercises
    from in_page.playground import WrongError, proved

    from collectives.algorithms import ALGORITHMS
    from collectives.core.schedule import reverse, then

    steps = exercises.EXERCISES["tree-all-reduce-3"]
    assert not judged("def steps(p, s):\n    return 2 * (p + s - 2)", steps)
    assert "steps(3, 2) returns 8" in judged("def steps(p, s):\n    return 2 * (p - 1) * s", steps)

    def dual(p: int) -> Any:
        return reverse(ALGORITHMS["all_gather", "bruck"](p), "reduce_scatter", add=True)

    def rabenseifner(p: int) -> Any:
        return then(
            reverse(ALGORITHMS["all_gather", "ring"](p), "reduce_scatter", add=True),
            reverse(ALGORITHMS["scatter", "binomial"](p), "gather", add=False),
            "reduce",
            root=0,
        )

    right = {"scatter-gather-all-gather-4": dual, "reduce-and-reduce-scatter-6": rabenseifner}
    for name, mine in right.items():
        asked = exercises.EXERCISES[name]
        assert isinstance(asked, exercises.Plan)
        assert not any(asked.fault(proved(mine, asked.collective, p)) for p in asked.ranks)
        own: dict[str, Any] = {}
        exec(asked.start, own)
        with pytest.raises((WrongError, ValueError, AssertionError)):
            assert not any(
                asked.fault(proved(own["mine"], asked.collective, p)) for p in asked.ranks
            )
    with pytest.raises(WrongError, match=r"p = 2: reduce on 2 ranks.*0 times"):
        proved(lambda p: ALGORITHMS["reduce", "flat"](p, root=0) if p < 2 else cut(p), "reduce", 2)
    with pytest.raises(WrongError, match=r"got int, expected a Schedule"):
        proved(lambda p: p, "reduce", 3)  # type: ignore[arg-type, return-value]


def cut(p: int) -> Any:
    from dataclasses import replace

    from collectives.algorithms import ALGORITHMS

    whole = ALGORITHMS["reduce", "flat"](p)
    return replace(whole, nsteps=0)


def test_the_playground_s_comparison_is_computed_again_by_another_library_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, computed = tmp_path / "playground.json", list[int]()
    monkeypatch.setattr(FETCH, "best", lambda: computed.append(1) or {"reduce": [len(computed)]})
    cases = (
        ("one", 1),
        ("one", 1),
        ("other", 2),
    )
    for library, times in cases:
        monkeypatch.setattr(
            FETCH,
            "code",
            lambda _folder, library=library: library,
        )
        written = FETCH.compared(kept).read_text("utf8")
        assert json.loads(written)["reduce"] == [times]
    left = [it.name for it in tmp_path.iterdir()]
    assert left == ["playground.json"]


class Ranges(BaseHTTPRequestHandler):
    """Serves ranges of one file."""

    def __init__(self, data: bytes, asked: list[str], *given: Any) -> None:
        self.data, self.asked = data, asked
        super().__init__(*given)

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()

    def do_GET(self) -> None:
        self.asked.append(self.headers["Range"])
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.send_response(206)
        self.end_headers()
        self.wfile.write(self.data[first : last + 1])


@pytest.fixture
def served() -> Iterator[tuple[str, list[str], bytes]]:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("large", bytes(1 << 20))
        archive.writestr("folder/small.whl", b"a wheel")
    asked: list[str] = []
    handler = partial(Ranges, held.getvalue(), asked)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", asked, held.getvalue()
        server.shutdown()
        thread.join()


@pytest.mark.integration
def test_one_member_of_a_large_file_is_read_by_ranges(served: tuple[str, list[str], bytes]) -> None:
    address, asked, data = served
    with zipfile.ZipFile(FETCH.RemoteFile(address)) as archive:
        assert archive.read("folder/small.whl") == b"a wheel"
    moved = sum(-eval(each.removeprefix("bytes=")) + 1 for each in asked)
    assert 0 < moved < len(data) // 2


@pytest.mark.integration
def test_another_file_is_refused(served: tuple[str, list[str], bytes]) -> None:
    right = hashlib.sha256(b"a wheel").hexdigest()
    with zipfile.ZipFile(io.BytesIO(served[2])) as archive:
        places = {"small.whl": "folder/small.whl"}
        assert FETCH.member(archive, places, "small.whl", right) == b"a wheel"
        with pytest.raises(FETCH.FetchError, match=r"digest of small.whl: got .*, expected 0"):
            FETCH.member(archive, places, "small.whl", "0")
        with pytest.raises(FETCH.FetchError, match=r"got no other.whl"):
            FETCH.member(archive, places, "other.whl", right)


@pytest.mark.integration
def test_without_a_network_the_site_is_built_without_live_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from book_site import live

    monkeypatch.setattr(FETCH, "PLACE", tmp_path / "python")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    FETCH.main()
    said = capsys.readouterr().out.splitlines()[-1]
    assert "no live cells on the pages: " in said
    assert not (tmp_path / "python").exists()
    assert list((tmp_path / "cache" / "collective-communication").iterdir()) == []
    monkeypatch.setattr(live, "PYTHON", tmp_path / "python")
    context: dict[str, Any] = {"body": '<div class="live-cell"><check-answer exercise="x">'}
    live.load(None, "page", "page.html", context, object())
    assert context["body"] == '<div class="live-cell"><check-answer exercise="x">'
