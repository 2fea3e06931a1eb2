"""What the book's pages and notebooks call: for each notebook a folder with its parameters, ``run`` and figures.

The folder of ``experiments/all-reduce-sweep.ipynb`` is ``all_reduce_sweep/``. Its ``experiment.py`` has a model
``Parameters`` and a function ``run`` that measures or simulates, and writes rows and record to ``parameters.output``.
A notebook checks what it was given, however it was started (`checked`); `collectives run` checks a preset before it
starts anything (`collectives_book.execute`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from collectives.errors import explain, unknown

if TYPE_CHECKING:
    from collectives_book.parameters import Parameters

Checked = TypeVar("Checked", bound="Parameters")

# The notebooks' names, found by their folders.
FOLDERS = sorted(path.parent.name for path in Path(__file__).parent.glob("*/experiment.py"))
EXPERIMENTS = tuple(folder.replace("_", "-") for folder in FOLDERS)

# Names that IPython itself puts beside a notebook's parameters, and the types that a parameter may have.
IPYTHON = {"In", "Out", "get_ipython", "exit", "quit", "open"}
SIMPLE = (str, int, float, bool, list, dict, type(None))


class ExperimentError(ValueError):
    """An experiment that cannot be run as asked, or that failed."""


def load(name: str) -> Any:
    """The module ``experiment`` of a notebook: it has ``Parameters`` and ``run``. The others are not imported.

    >>> load("straggler").run.__module__
    'collectives_book.straggler.experiment'
    """
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}.experiment")


def checked(model: type[Checked], namespace: Mapping[str, Any]) -> Checked:
    """The notebook's parameters, checked by name and type; ``namespace`` is the ``globals()`` of its first cells.

    papermill adds a misspelt parameter as one more variable and only warns; here it is an ExperimentError.
    """
    return validated(model, {name: value for name, value in namespace.items() if _is_parameter(name, value)})


def _is_parameter(name: str, value: Any) -> bool:
    return not name.startswith("_") and name not in IPYTHON and isinstance(value, SIMPLE)


def validated(model: type[Checked], given: Mapping[str, Any]) -> Checked:
    """The parameters of a model: these and no others. Raises ExperimentError, in one line, for anything else."""
    from pydantic import ValidationError

    from collectives.config import FILE

    for name in given:
        if name not in model.model_fields:
            raise ExperimentError(unknown("parameter", str(name), model.model_fields))
    try:
        return model.model_validate(dict(given), context=FILE)
    except ValidationError as error:
        raise ExperimentError(explain(error)) from None
