"""Pictures of which algorithm to take: every field is drawn, and every area has a name."""

from collectives_book.figures.by_hand import readable_on
from collectives_book.figures.predicted import Fastest, _areas, _initials, fastest

SMALL, LARGE = 8, 25 << 20


def fields(last: str) -> Fastest:
    return Fastest("A machine", [16, 24, 32], {SMALL: ["recursive_doubling"] * 3, LARGE: ["ring", "ring", last]})


def test_a_different_winner_is_a_different_picture() -> None:
    one, other = (fastest([fields(last)], "", LARGE) for last in ("optimal", "ring"))
    assert one.light != other.light
    assert one == fastest([fields("optimal")], "", LARGE)


def test_names_are_readable_on_every_colour() -> None:
    assert [readable_on(colour) for colour in ("#000000", "#332288", "#ffffff")] == ["white", "white", "black"]


def test_every_area_has_a_label() -> None:
    """One field is too narrow for a name of two words, and two areas of one name are named apart."""
    rows = [["ring", "recursive_doubling", "ring"], ["ring", "ring", "ring"], ["optimal", "ring", "optimal"]]
    areas = _areas(rows)
    assert sorted(map(len, areas)) == [1, 1, 1, 6]
    assert [_initials(name) for name in ("recursive_doubling", "two_tree", "optimal")] == ["RD", "TT", "O"]
    assert _areas([["", ""]]) == []
