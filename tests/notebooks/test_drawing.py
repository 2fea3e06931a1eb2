"""Whatever the check of an experiment accepts can be drawn: the notebooks' own cells, on rows as ranks report them."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest

from collectives.backends import Performed
from collectives.bench import Settings, calibration, measure
from collectives.bench.environment import record
from collectives.bench.results import write
from collectives.bench.sweep import failed_rows
from collectives.machine import Link, Machine
from collectives_book import checked, load
from collectives_book.calibration import experiment as calibration_experiment
from collectives_book.parameters import Sweep
from collectives_book.straggler import experiment
from places import ROOT

pytestmark = pytest.mark.integration  # draws every figure of the notebooks: twenty seconds
NOTEBOOKS = ROOT / "experiments"
FAST, SLOW = [2e-6, 3e-6, 3e-6, 3e-6, 5e-6], [3e-3, 4e-3, 4e-3, 4e-3, 5e-3]


def draw(name: str, parameters: dict[str, Any]) -> str:
    """Everything that a notebook shows after its measurement, as text."""
    shown: list[str] = []

    def display(value: Any) -> None:
        shown.append(value._repr_html_() if hasattr(value, "_repr_html_") else str(getattr(value, "data", value)))

    namespace: dict[str, Any] = {"display": display}
    for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and "remove-stderr" not in tags:
            code = ast.parse(cell.source)
            last = code.body.pop() if code.body and isinstance(code.body[-1], ast.Expr) else None
            exec(compile(code, name, "exec"), namespace)
            if isinstance(last, ast.Expr):
                display(eval(compile(ast.Expression(last.value), name, "eval"), namespace))
            namespace |= parameters if "parameters" in tags else {}
    return "\n".join(shown)


def rows(wanted: Sequence[Settings], times: Sequence[Sequence[float]]) -> Iterator[dict[str, Any]]:
    """As `bench` reports them; where there are no times, that size failed."""
    times = list(times)
    for one in (part for settings in wanted for part in settings.launches()):
        for nth, nbytes in enumerate(one.bytes):
            if not times[nth % len(times)]:
                yield from failed_rows(one, nbytes, "rank 1 of 2 was killed by SIGKILL\nlast words")
                continue
            for number, configuration in enumerate(one.configurations()):
                seconds = [s * (1 + number * (len(times) > 1)) for s in times[nth % len(times)]]
                did = Performed(configuration[1])
                yield measure._row(one, one.elements(nbytes), configuration, did, seconds, 0) | {"error": None}


def draw_measured(name: str, asked: dict[str, Any], times: Sequence[Sequence[float]], folder: Path) -> str:
    parameters = asked | {"where": "loopback", "repetitions": max(1, *map(len, times)), "output": f"{folder}/rows"}
    parameters |= {"dtype": "float32", "in_place": None, "timeout": "60s"}
    model = checked(load(name).Parameters, parameters)
    assert isinstance(model, Sweep)
    wanted = model.settings()
    settings = [each.model_dump() for each in wanted]
    write(model.output, list(rows(wanted, times)), {"settings": settings, "environment": [record()]})
    return draw(name, parameters)


@pytest.mark.parametrize(
    ("asked", "times", "said"),
    [
        ({"sizes": [4], "algorithms": ["ring"], "backends": ["p2p"]}, [[1e-3]], "ring 1 ms at 4 B."),
        ({"sizes": [4], "algorithms": [], "backends": ["gloo"]}, [[4e-7]], "gloo (its own choice) 0.4 µs at 4 B."),
        (
            {"sizes": [4, "1M"], "algorithms": ["ring"], "backends": ["p2p", "gloo"]},
            [[2e-6]],
            "ring and gloo (its own choice) tie at 1 MiB.",
        ),
        (
            {"sizes": [4, 64], "algorithms": ["auto", "ring", "tree"], "backends": ["p2p"]},
            [FAST, SLOW],
            "auto is fastest at 64 B.",
        ),
        (
            {"sizes": ["64K"], "algorithms": [], "backends": ["mpi", "mpi:ring"]},
            [[1.00049e-3, 1.00051e-3, 1.00051e-3, 1.00051e-3, 1.00053e-3]],
            "mpi (its own choice) and mpi (ring) tie at 64 KiB.",
        ),
        (
            {"ranks": 1, "sizes": [4], "algorithms": ["ring"], "backends": ["p2p", "gloo"]},
            [FAST],
            "ring and gloo (its own choice) tie at 4 B.",
        ),
        ({"sizes": [4, 8], "algorithms": ["ring"], "backends": ["p2p"]}, [[], FAST], "4 B failed (rank 1 of 2"),
        ({"sizes": [4], "algorithms": ["ring"], "backends": ["p2p"]}, [[]], "There are no rows to draw."),
    ],
)
def test_one_collective(asked: dict[str, Any], times: Sequence[Sequence[float]], said: str, tmp_path: Path) -> None:
    assert said in draw_measured("all-reduce-sweep", {"ranks": 2} | asked, times, tmp_path)


@pytest.mark.parametrize(
    ("asked", "times", "said"),
    [
        (
            {"collectives": ["gather"], "backends": ["p2p"]},
            [[1e-3]],
            "At 1 KiB, ours is fastest in 1 of 1 collectives.",
        ),
        (
            {"collectives": ["all_reduce"], "backends": ["mpi", "mpi:ring"]},
            [FAST, SLOW],
            "mpi is fastest in 1 of 1 collectives.",
        ),
        (
            {"collectives": ["all_reduce", "broadcast", "gather"]},
            [[2e-6]],
            "several tie for first in 3 of 3 collectives.",
        ),
        ({"collectives": ["broadcast"]}, [[], FAST], "1 KiB failed (rank 1 of 2"),
        ({"collectives": ["broadcast"]}, [[]], "There are no rows to draw."),
    ],
)
def test_several_collectives(
    asked: dict[str, Any], times: Sequence[Sequence[float]], said: str, tmp_path: Path
) -> None:
    plain = {"ranks": 2, "sizes": ["1K", "64K"][: len(times)], "backends": ["p2p", "gloo"]}
    assert said in draw_measured("collectives-sweep", plain | asked, times, tmp_path)


@pytest.mark.parametrize(
    "asked",
    [
        {"positions": []},
        {"positions": [1]},
        {"factors": [1], "algorithms": ["ring"], "sizes": [4]},
        {"factors": [2], "position_factor": 1},
        {"algorithms": ["two_tree"]},
    ],
)
def test_a_slow_link(asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = {
        "hosts": 2,
        "latency": "1ms",
        "rate": "100MB/s",
        "slow_host": 1,
        "factors": [1, 4],
        "sizes": [4, "64K"],
    }
    parameters |= {"positions": [0, 1], "position_factor": 4, "algorithms": ["ring", "tree"], "repetitions": 1}
    parameters |= asked | {"output": f"{tmp_path}/rows"}
    model = checked(experiment.Parameters, parameters)
    settings = model.settings()
    made = [
        experiment._row(model, row | {"point": point}) for point in model.points() for row in rows([settings], [[2e-3]])
    ]
    write(model.output, made, {"settings": [settings.model_dump()], "environment": [record()]})
    monkeypatch.setattr("collectives.emulator.allowed", lambda: None)
    source = "from collectives.bench.results import read\nrows, record = read(parameters.output)"
    monkeypatch.setattr(nbformat, "read", replacing(source))
    assert "only-light" in draw("straggler", parameters)


def replacing(source: str) -> Any:
    """`nbformat.read`, with this in the cell that measures."""
    plain = nbformat.read

    def read(*arguments: Any) -> Any:
        notebook = plain(*arguments)
        for cell in notebook.cells:
            if "remove-stderr" in cell.metadata.get("tags", []):
                cell.source, cell.metadata.tags = source, []
        return notebook

    return read


@pytest.mark.integration
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
def test_simulations(asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = {"machine": "textbook", "ranks": [4], "algorithms": ["ring", "tree"], "small": 8, "large": "1K"}
    parameters |= {"map_machines": [], "map_nodes": [], "map_sizes": []}
    ends = replacing("experiment.run(parameters)")
    monkeypatch.setattr(nbformat, "read", ends)
    assert "simulations" in draw("massive-scale", parameters | asked | {"output": f"{tmp_path}/rows"})


@pytest.mark.integration
def test_a_calibrated_link(tmp_path: Path) -> None:
    model = checked(
        calibration_experiment.Parameters,
        {"where": "loopback", "ranks": 2, "sizes": [8, "1K"], "repetitions": 1, "output": f"{tmp_path}/rows"},
    )
    made = [{"bytes": n, "one_way": 1e-5 + n / 1e9, "each": 1e-6 + n / 1e9} for n in model.sizes]
    fitted = Machine(name="a: b", network=Link(latency=9e-6, overhead=1e-6, rate=50e3))
    calibration.save(fitted, calibration_experiment.file(model.output))
    write(model.output, calibration.deviations(made, fitted.network), {})
    assert "name: 'a: b'" in draw("calibration", model.model_dump())
