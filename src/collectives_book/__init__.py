"""The code that the book's pages and notebooks call.

Each notebook in ``experiments/`` has a class with its parameters.

`collectives_book.experiment` has what the classes share, and `collectives_book.execute` runs
notebooks with presets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectives_book.experiment import Experiment

# The notebooks, and the class of each.
EXPERIMENTS = {
    "all-reduce-sweep": "collectives_book.sweeps:AllReduceSweep",
    "asynchronous": "collectives_book.asynchronous.experiment:Asynchronous",
    "calibration": "collectives_book.sweeps:Calibration",
    "collectives-sweep": "collectives_book.sweeps:CollectivesSweep",
    "data-parallel": "collectives_book.data_parallel.experiment:DataParallel",
    "massive-scale": "collectives_book.massive_scale.experiment:MassiveScale",
    "model-parallel": "collectives_book.model_parallel.experiment:ModelParallel",
    "overlap": "collectives_book.overlap.experiment:Overlap",
    "rivals": "collectives_book.rivals:Rivals",
    "scaling": "collectives_book.scaling.experiment:Scaling",
    "straggler": "collectives_book.straggler.experiment:Straggler",
    "weak-scaling": "collectives_book.overlap.experiment:WeakScaling",
}


def load(name: str) -> type[Experiment]:
    """Return the class of a notebook's experiment; the others are not imported.

    >>> load("straggler").__name__
    'Straggler'
    """
    module, _, found = EXPERIMENTS[name].partition(":")
    experiment: type[Experiment] = getattr(importlib.import_module(module), found)
    return experiment
