"""Pictures of sums: the trees have every rank, and a line for each operand."""

from matplotlib.figure import Figure

from collectives.algorithms import build
from collectives.core.summation import summation
from collectives.figures.style import LIGHT
from collectives_book.figures import sums


def test_a_tree_has_every_rank_once_and_its_sum_in_the_text() -> None:
    for name in ("ring", "recursive_doubling", "one_shot", "two_tree"):
        found = summation(build("all_reduce", name, 7))
        assert sorted(sums.leaves(found.tree, int(found.node[0, 0]))) == list(range(7))
        drawn = sums.trees({name: found})
        assert sums.written(found.tree, int(found.node[0, 0])) in drawn.alt
        assert f"depth {found.depth[0, 0]}".encode() in drawn.light


def test_a_picture_has_the_terms_of_one_chunk_only() -> None:
    """A line for each operand, however many other chunks there are."""
    found = summation(build("all_reduce", "ring", 7))
    figure = Figure()
    sums._tree(figure.subplots(), found, LIGHT)
    (axes,) = figure.axes
    assert len(axes.lines) == 2 * 6 + 1
