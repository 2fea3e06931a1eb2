"""An experiment is added in a copy of the package: a folder, a notebook and an entry in a preset (CONTRIBUTING)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat

import collectives
from collectives.bench.results import read

EXPERIMENT = '''"""Squares."""

from collectives.bench.results import write
from collectives.experiments import parameters as base
from collectives.experiments.parameters import Latency, Size, Some


class Parameters(base.Parameters):
    """The parameters of ``my-sweep``."""

    sizes: Some[Size]
    latency: Latency


def run(parameters: Parameters) -> None:
    """Square the sizes."""
    rows = [{"bytes": size, "seconds": size**2 * parameters.latency} for size in parameters.sizes]
    write(parameters.output, rows, {"parameters": parameters.model_dump()})
'''
CELLS = (
    'sizes = [4]\nlatency = "1ms"\noutput = "results/mine/my-sweep"',
    "from collectives.experiments import checked\nfrom collectives.experiments.my_sweep import experiment\n\n"
    "parameters = checked(experiment.Parameters, globals())\nexperiment.run(parameters)",
)


def add(package: Path, notebooks: Path) -> set[str]:
    """The three additions; returns what was written, by its path."""
    folder = package / "experiments" / "my_sweep"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""The notebook my-sweep."""\n')
    (folder / "experiment.py").write_text(EXPERIMENT)
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    cells[0].metadata.tags = ["parameters"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), notebooks / "my-sweep.ipynb")
    (notebooks / "presets").mkdir()
    (notebooks / "presets" / "quick.yaml").write_text("my-sweep: {sizes: [8, 1K], latency: 5ms}\n")
    return {path.name for path in folder.iterdir()}


def test_an_experiment_is_a_folder_a_notebook_and_an_entry(tmp_path: Path) -> None:
    package, notebooks = tmp_path / "src" / "collectives", tmp_path / "experiments"
    shutil.copytree(Path(collectives.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    notebooks.mkdir()
    assert add(package, notebooks) == {"__init__.py", "experiment.py"}
    environment = os.environ | {"PYTHONPATH": str(package.parent)}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "collectives", "run", "experiments/my-sweep.ipynb", *options]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120, check=False
        )

    wrong = run("-p", "latency=5")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "latency: a number needs its unit, such as 5us, got 5" in wrong.stderr
    done = run()
    assert done.returncode == 0, done.stderr
    rows, record = read(notebooks / "results" / "quick" / "my-sweep")
    assert rows.seconds.tolist() == [0.32, 1024**2 * 0.005]
    assert record["parameters"]["latency"] == 0.005
