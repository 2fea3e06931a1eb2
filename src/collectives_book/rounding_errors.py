"""The errors of rounded sums that the chapter about them shows.

`collectives_book.computed` records them.
"""

from itertools import product
from typing import Any

from collectives.algorithms import build
from collectives.rounding import measure, samples


def computed_rows() -> list[dict[str, Any]]:
    """Return the errors of rounded sums, each algorithm's on five samples of a thousand elements."""
    names = ("ring", "two_tree", "recursive_doubling", "one_shot")
    more = ("tree", "halving_doubling")
    cases = [*product(names, (16, 32, 64, 128, 256, 512, 1024), ["normal"], ["bfloat16"])]
    cases += product(more, [1024], ["normal"], ["bfloat16"])
    cases += product(names + more, [1024], ["positive"], ["bfloat16"])
    cases += [
        ("ring", 256, "normal", "float16"),
        ("two_shot", 64, "normal", "bfloat16"),
    ]
    return [_rounded(*case) for case in cases]


def _rounded(name: str, p: int, data: str, dtype: str) -> dict[str, Any]:
    schedule = build("all_reduce", name, p)
    errors = measure(schedule, dtype, list(samples(data, p, 5)))
    return {
        "algorithm": name,
        "ranks": p,
        "data": data,
        "dtype": dtype,
    } | errors._asdict()
