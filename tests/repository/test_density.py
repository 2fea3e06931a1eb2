"""The gate of density sees each thing that it counts, and says what is above its limit."""

import math

import pytest

from places import script

DENSITY = script("density")
PLAIN = """
def largest(rows):
    largest = 0
    for row in rows:
        largest = max(largest, *row)
    return largest
"""


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("    return [value for row in rows for value in row for bit in value]", "loops"),
        ("    return print(*rows, *rows)", "stars"),
        ("    return (found := rows)", "walruses"),
        (
            "    return rows[rows[rows[0] + 1] + 2] if rows[3] > rows[4] else rows[5] - rows[6]",
            "nodes",
        ),
    ],
)
def test_a_planted_line_is_above_the_limit(line: str, name: str) -> None:
    limits = {"src/new": DENSITY.measure([PLAIN])}
    assert not list(DENSITY.faults(limits, limits))
    table = {"src/new": DENSITY.measure([PLAIN.replace("    return largest", line)])}
    faults = list(DENSITY.faults(table, limits))
    assert any(DENSITY.MEASURES[name] in fault for fault in faults)
    assert all(fault.startswith("src/new: ") for fault in faults)


def test_docstrings_are_no_code() -> None:
    documented = PLAIN.replace("    largest = 0", '    """Return the largest."""\n    largest = 0')
    count = sum(1 for _ in DENSITY.nodes(DENSITY.ast.parse(PLAIN)))
    assert sum(1 for _ in DENSITY.nodes(DENSITY.ast.parse(documented))) == count


def test_limits_only_fall() -> None:
    low, high = (
        DENSITY.measure([PLAIN]),
        DENSITY.measure(["x = [*a, *b, *[c for d in e for c in d]]\n"]),
    )
    none = dict.fromkeys(DENSITY.MEASURES, math.inf)
    limits = DENSITY.lowered({"src/new": low}, {"src/new": none})
    assert all(
        low[name] <= limits["src/new"][name] < low[name] + step
        for name, step in DENSITY.STEPS.items()
    )
    assert not list(DENSITY.faults({"src/new": low}, limits))
    assert DENSITY.lowered({"src/new": high}, limits) == limits
    assert list(DENSITY.faults({"src/new": high}, limits))
