"""Pictures of sums: the trees have every rank, and the message names the extremes."""

from matplotlib.figure import Figure

from collectives.algorithms import build
from collectives.figures.style import LIGHT
from collectives.summation import summation
from collectives_book.figures import sums


def test_a_tree_has_every_rank_once_and_its_sum_in_the_text() -> None:
    for name in ("ring", "recursive_doubling", "exchange", "two_tree"):
        found = summation(build("all_reduce", name, 7))
        assert sorted(sums.leaves(found.terms, int(found.held[0, 0]))) == list(range(7))
        drawn = sums.trees({name: found})
        assert sums.written(found.terms, int(found.held[0, 0])) in drawn.alt
        assert f"depth {found.depth[0, 0]}".encode() in drawn.light


def test_a_picture_has_the_terms_of_one_chunk_only() -> None:
    """A line for each operand, however many other chunks there are."""
    found = summation(build("all_reduce", "ring", 7))
    figure = Figure()
    sums._tree(figure.subplots(), found, LIGHT)
    (axes,) = figure.axes
    assert len(axes.lines) == 2 * 6 + 1


def test_the_error_s_message_compares_the_most_with_the_least() -> None:
    drawn = sums.errors([2, 4], {"ring": [0.01, 0.08], "exchange": [0.01, 0.02]})
    assert b"On 4 ranks the error of ring is 4 times that of exchange" in drawn.light
    assert "exchange from 1.0% at 2 to 2.0% at 4" in drawn.alt
