"""Pictures of which algorithm to take: every field is drawn, and the alternative text says who wins where."""

from collectives_book.figures.kit import readable_on
from collectives_book.figures.predicted import Fastest, bus_bandwidth, fastest

SMALL, LARGE = 8, 25 << 20


def fields(last: str) -> Fastest:
    return Fastest("A machine", [16, 24, 32], {SMALL: ["recursive_doubling"] * 3, LARGE: ["ring", "ring", last]})


def test_the_alternative_text_says_who_wins_where() -> None:
    drawn = fastest([fields("optimal")], "Read along your row", LARGE)
    assert drawn.alt == (
        "Simulated, the fastest all-reduce. A machine: on 16 ranks recursive_doubling from 8 B, ring from 25 MiB; "
        "on 24 ranks recursive_doubling from 8 B, ring from 25 MiB; "
        "on 32 ranks recursive_doubling from 8 B, optimal from 25 MiB."
    )


def test_a_different_winner_is_a_different_picture() -> None:
    one, other = (fastest([fields(last)], "", LARGE) for last in ("optimal", "ring"))
    assert one.light != other.light
    assert one == fastest([fields("optimal")], "", LARGE)


def test_names_are_readable_on_every_colour() -> None:
    assert [readable_on(colour) for colour in ("#000000", "#332288", "#ffffff")] == ["white", "white", "black"]


def test_lines_of_bandwidth_are_named_with_their_ends() -> None:
    drawn = bus_bandwidth([1024, 2048], {"ring": [1.0, 48.0], "ring, one slow port": [1.0, 12.5]}, 50.0, "A slow port")
    assert drawn.alt == (
        "Simulated bus bandwidth by size: ring from 1 GB/s at 1 KiB to 48 GB/s at 2 KiB; "
        "ring, one slow port from 1 GB/s at 1 KiB to 12.5 GB/s at 2 KiB. A port has 50 GB/s."
    )
    assert b"<svg" in drawn.dark
