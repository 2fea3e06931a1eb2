"""What the page's player is given: played by the documented rule, in plain Python, it does what the collective asks."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from collectives.algorithms import ALGORITHMS, build, names
from collectives.core.contracts import CONTRACTS, ROOTED
from collectives.core.grid import grid
from collectives.figures.layout import layout
from collectives.figures.player import RANKS, player, player_data, shown, write_scripts
from interop.programs import ring

JUNK = "junk"
Cells = dict[tuple[int, int], Counter[Any]]


def chunks(chunk: int, count: int) -> range:
    return range(chunk, chunk + count)


def start(data: dict[str, Any]) -> Cells:
    cells = {
        (rank, chunk): Counter([JUNK]) for rank in range(data["p"]) for chunk in range(data["k"])
    }
    cells |= {
        (data["p"] + i, chunk): Counter()
        for i in range(data["switches"])
        for chunk in range(data["k"])
    }
    for rank, first, count in data["before"]:
        cells |= {(rank, chunk): Counter([rank]) for chunk in chunks(first, count)}
    return cells


def played(data: dict[str, Any]) -> Cells:
    """Read everything, then write; several adds count."""
    cells = start(data)
    for step in data["steps"]:
        moves = [
            (dst, chunk, add, Counter(cells[src, chunk]))
            for src, dst, first, count, add in zip(*step, strict=True)
            for chunk in chunks(first, count)
        ]
        for dst, chunk, add, held in moves:
            if not add:
                cells[dst, chunk] = held
        for dst, chunk, add, held in moves:
            if add:
                cells[dst, chunk] += held
    return cells


def wrong(data: dict[str, Any]) -> list[tuple[int, int]]:
    cells = played(data)
    return [
        (rank, chunk)
        for rank, first, count, who in data["asked"]
        for chunk in chunks(first, count)
        if cells[rank, chunk] != Counter(range(data["p"]) if who == -1 else [who])
    ]


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_playing_the_data_keeps_the_contract(collective: str, algorithm: str) -> None:
    for p in range(2, 10):
        data = json.loads(json.dumps(player_data(shown(collective, algorithm, p), algorithm)))
        assert data["asked"]
        assert not wrong(data), f"{p} ranks"


@pytest.mark.parametrize("collective", ROOTED)
def test_any_root_can_be_played(collective: str) -> None:
    for algorithm in names(collective):
        for p, root in ((5, 3), (6, 5)):
            assert not wrong(
                player_data(build(collective, algorithm, p, root=root, segments=2), algorithm)
            )


def test_a_missing_step_would_be_seen() -> None:
    data = player_data(shown("all_reduce", "ring", 4), "ring")
    data["steps"].pop()
    assert len(wrong(data)) == 4


def test_the_data_say_what_they_are() -> None:
    data = player_data(shown("reduce", "chain", 3), "chain")
    about = (
        "version",
        "collective",
        "algorithm",
        "p",
        "k",
        "root",
        "parts",
        "ranks_per_node",
        "one_port",
        "switches",
    )
    assert [data[name] for name in about] == [1, "reduce", "chain", 3, 2, 0, 1, 1, True, 0]
    assert (data["steps"][0], data["asked"]) == ([[2], [1], [1], [1], [1]], [[0, 0, 2, -1]])


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_ranks_stand_apart_and_inside_the_square(collective: str, algorithm: str) -> None:
    for p in RANKS:
        placed = layout(shown(collective, algorithm, p), algorithm)
        points = [tuple(point) for point in placed.points.tolist()]
        assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in points)
        assert len(set(points)) == shown(collective, algorithm, p).participants
        assert placed.radius > 0.015
        assert len(placed.nodes) in (0, p // shown(collective, algorithm, p).ranks_per_node)


@pytest.mark.integration
def test_every_schedule_is_in_a_script_and_writing_again_touches_no_file(tmp_path: Path) -> None:
    scripts = write_scripts(tmp_path)
    assert [path.name for path in scripts] == [
        f"schedules-{collective}.js" for collective in CONTRACTS
    ]
    found = {}
    for path in scripts:
        prefix, _, body = path.read_text(encoding="utf8").partition("=\n")
        collective = json.loads(prefix.partition("[")[2].partition("]")[0])
        schedules = json.loads(body.removesuffix(";\n"))
        found |= {(collective, name): list(schedules[name]) for name in schedules}
        last = names(collective)[-1]
        assert schedules[last]["9"] == player_data(shown(collective, last, 9), last)
    assert found == {of: [str(p) for p in RANKS] for of in ALGORITHMS}
    assert sum(path.stat().st_size for path in scripts) < 3_000_000
    before = [path.stat().st_mtime_ns for path in scripts]
    write_scripts(tmp_path)
    assert before == [path.stat().st_mtime_ns for path in scripts]


def test_the_element_carries_the_grid_as_text() -> None:
    html = player("all_reduce", "ring", 4, name="my-ring", step=2)._repr_html_()
    assert html.startswith(
        '<schedule-player id="my-ring" collective="all_reduce" algorithm="ring" p="4" step="2" '
    )
    text = html.partition("<pre>")[2].partition("</pre>")[0]
    assert text.replace("&lt;", "<") == grid(shown("all_reduce", "ring", 4))


def test_the_element_carries_a_schedule_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "a_ring.xml").write_text(ring(5))
    file = f"{tmp_path}/a_ring.xml"
    html = player("all_reduce", file, 5, step=2)._repr_html_()
    assert html.startswith(
        '<schedule-player id="all-reduce-a-ring-xml-5" step="2" role="group" aria-label="Schedule '
    )
    inside, _, text = html.partition(">{")[2].partition("</script><pre>")
    made = build("all_reduce", file, 5)
    assert json.loads("{" + inside) == player_data(made, "a_ring.xml")
    assert text.partition("</pre>")[0].replace("&lt;", "<") == grid(made)
    assert str(tmp_path) not in html
    with pytest.raises(ValueError, match="is all_reduce on 5 ranks, not all_reduce on 4"):
        player("all_reduce", file, 4)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("all_reduce", "rnig", 4), {}, "no algorithm 'rnig' for 'all_reduce'"),
        (("all_reduce", "ring", 17), {}, "the player shows 2 to 16 ranks, not 17"),
        (("all_reduce", "ring", 4), {"stp": 3}, "the player has no option stp"),
    ],
)
def test_a_typing_error_fails_the_page(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        player(*arguments, **options)
