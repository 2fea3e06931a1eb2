"""Whatever the check of an experiment accepts can be drawn: the notebooks' own cells, on rows as ranks report them."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest

from collectives.bench import Settings, calibration, measure
from collectives.bench.results import read, record, write
from collectives.bench.settings import group_by_launch
from collectives.bench.sweep import error_rows
from collectives.engine.call import Performed
from collectives.machine import Link, Machine
from collectives_book import experiment as base
from collectives_book import load
from collectives_book.experiment import Experiment
from collectives_book.sweeps import Calibration
from places import ROOT

pytestmark = pytest.mark.integration  # draws every figure of the notebooks: twenty seconds
FAST, SLOW = [2e-6, 3e-6, 3e-6, 3e-6, 5e-6], [3e-3, 4e-3, 4e-3, 4e-3, 5e-3]
SWEEP: dict[str, Any] = {
    "ranks": 2,
    "dtype": "float32",
    "in_place": None,
    "where": "loopback",
    "timeout": "60s",
}
SWEEP |= {"share_gpus": False}
ALL_REDUCE = SWEEP | {"sizes": [4], "algorithms": ["ring"], "backends": ["p2p"]}
COLLECTIVES = SWEEP | {"sizes": ["1K"], "collectives": ["broadcast"], "backends": ["p2p", "gloo"]}
HOSTS: dict[str, Any] = {"hosts": 2, "latency": "1ms", "rate": "100MB/s", "sizes": [4, "64K"]}
STRAGGLER = HOSTS | {"slow_host": 1, "factors": [1, 4], "positions": [0, 1], "position_factor": 4}
STRAGGLER |= {"algorithms": ["ring", "tree"]}
MASSIVE: dict[str, Any] = {
    "machine": "textbook",
    "ranks": [4],
    "algorithms": ["ring", "tree"],
    "small": 8,
}
MASSIVE |= {"large": "1K", "map_machines": [], "map_nodes": [], "map_sizes": []}

# A notebook, its parameters, the seconds of each size, none for one that failed, and what it shows.
MEASURED = [
    ("all-reduce-sweep", ALL_REDUCE, [[1e-3]], "ring 1 ms at 4 B."),
    (
        "all-reduce-sweep",
        ALL_REDUCE | {"algorithms": [], "backends": ["gloo"]},
        [[4e-7]],
        "gloo 0.4 µs at 4 B.",
    ),
    (
        "all-reduce-sweep",
        ALL_REDUCE | {"sizes": [4, 64], "algorithms": ["auto", "ring", "tree"]},
        [FAST, SLOW],
        "tree from 9 µs at 4 B to 12 ms at 64 B.",
    ),
    (
        "all-reduce-sweep",
        ALL_REDUCE | {"algorithms": [], "backends": ["mpi", "mpi:ring"]},
        [[1e-3]],
        "mpi (ring) 1 ms",
    ),
    (
        "all-reduce-sweep",
        ALL_REDUCE | {"ranks": 1, "backends": ["p2p", "gloo"]},
        [FAST],
        "gloo 3 µs at 4 B.",
    ),
    (
        "all-reduce-sweep",
        ALL_REDUCE | {"sizes": [4, 8]},
        [[], FAST],
        "rank 1 of 2 was killed by SIGKILL",
    ),
    ("all-reduce-sweep", ALL_REDUCE, [[]], "There are no rows to draw."),
    (
        "collectives-sweep",
        COLLECTIVES | {"collectives": ["gather"], "backends": ["p2p"]},
        [[1e-3]],
        "auto 1 ms at 1 KiB",
    ),
    (
        "collectives-sweep",
        COLLECTIVES
        | {"sizes": ["1K", "64K"], "collectives": ["all_reduce"], "backends": ["mpi", "mpi:ring"]},
        [FAST, SLOW],
        "mpi (ring) from 6 µs at 1 KiB to 8 ms at 64 KiB.",
    ),
    (
        "collectives-sweep",
        COLLECTIVES | {"sizes": ["1K", "64K"]},
        [[], FAST],
        "rank 1 of 2 was killed by SIGKILL",
    ),
    ("collectives-sweep", COLLECTIVES, [[]], "There are no rows to draw."),
    ("straggler", STRAGGLER | {"positions": []}, [[2e-3]], "only-light"),
    (
        "straggler",
        STRAGGLER | {"factors": [1], "algorithms": ["ring"], "sizes": [4]},
        [[2e-3]],
        "only-light",
    ),
    ("straggler", STRAGGLER | {"factors": [2], "position_factor": 1}, [[2e-3]], "only-light"),
    (
        "straggler",
        STRAGGLER | {"algorithms": ["two_tree"], "positions": [1]},
        [[2e-3]],
        "only-light",
    ),
]


def draw(name: str, parameters: dict[str, Any]) -> str:
    """Everything that a notebook shows, as text."""
    shown: list[str] = []

    def display(*values: Any) -> None:
        shown.extend(
            value._repr_html_()
            if hasattr(value, "_repr_html_")
            else str(getattr(value, "data", value))
            for value in values
        )

    namespace: dict[str, Any] = {"display": display}
    for cell in nbformat.read(ROOT / "experiments" / f"{name}.ipynb", 4).cells:
        if cell.cell_type == "code":
            code = ast.parse(cell.source)
            last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
            exec(compile(code, name, "exec"), namespace)
            if isinstance(last, ast.Expr):
                display(eval(compile(ast.Expression(last.value), name, "eval"), namespace))
            namespace |= parameters if "parameters" in cell.metadata.get("tags", []) else {}
    return "\n".join(shown)


def rows(wanted: Sequence[Settings], times: Sequence[Sequence[float]]) -> Iterator[dict[str, Any]]:
    """As `bench` reports them; where there are no times, that size failed."""
    for one in (
        part for settings in wanted for parts in group_by_launch([settings]) for part in parts
    ):
        for nth, nbytes in enumerate(one.bytes):
            if not times[nth % len(times)]:
                yield from error_rows(one, nbytes, "rank 1 of 2 was killed by SIGKILL\nlast words")
                continue
            for number, configuration in enumerate(one.configurations()):
                seconds = [s * (1 + number * (len(times) > 1)) for s in times[nth % len(times)]]
                did = Performed(configuration[1])
                yield measure._row(one, one.elements(nbytes), configuration, did, seconds, 0) | {
                    "error": None
                }


@pytest.mark.parametrize(("name", "asked", "times", "said"), MEASURED)
def test_measured_rows(
    name: str,
    asked: dict[str, Any],
    times: Sequence[Sequence[float]],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = asked | {"repetitions": max(1, *map(len, times)), "output": f"{tmp_path}/rows"}
    experiment = load(name).given(parameters)
    wanted = experiment.measurements()
    points = experiment.points() if name == "straggler" else [None]
    made = [
        experiment.row(row | ({"point": point} if point else {}))
        for point in points
        for row in rows(wanted, times)
    ]
    settings = [each.model_dump() for each in wanted]
    write(experiment.output, made, {"settings": settings, "environment": [record()]})
    monkeypatch.setattr(base, "no_hosts", lambda: None)
    monkeypatch.setattr(Experiment, "run", lambda self: read(self.output))
    assert said in draw(name, parameters)


@pytest.mark.parametrize(
    "asked",
    [
        {"ranks": [2, 4], "small": 8, "large": 8},
        {"small": 1, "large": 1},
        {"machine": "summit", "ranks": [6]},
        {"map_nodes": [2], "map_sizes": [1], "map_machines": ["textbook", "summit"]},
        {"map_machines": ["textbook"]},
    ],
)
def test_simulations(asked: dict[str, Any], tmp_path: Path) -> None:
    assert "simulations" in draw("massive-scale", MASSIVE | asked | {"output": f"{tmp_path}/rows"})


def test_a_calibrated_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {
        "where": "loopback",
        "ranks": 2,
        "sizes": [8, 1024],
        "repetitions": 1,
        "output": f"{tmp_path}/rows",
    }
    model = Calibration.given(asked)
    made = [{"bytes": n, "one_way": 1e-5 + n / 1e9, "each": 1e-6 + n / 1e9} for n in model.sizes]
    fitted = Machine(name="a: b", network=Link(latency=9e-6, overhead=1e-6, rate=50e3))
    calibration.save(fitted, model.file())
    write(model.output, calibration.deviations(made, fitted.network), {})
    monkeypatch.setattr(Experiment, "run", lambda self: read(self.output))
    assert "name: 'a: b'" in draw("calibration", asked)
