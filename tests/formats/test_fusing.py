"""Which message goes on as which send, where several write and read the same cells."""

from collectives.formats.lowering import Transfer, kept, onward
from collectives.formats.program import BufferOffset


def move(t: int, src: int, dst: int, first: int = 0, chunks: int = 1, add: bool = False) -> Transfer:
    return Transfer(t, src, dst, BufferOffset("i", first), BufferOffset("i", first), chunks, add)


def test_a_message_goes_on_as_the_send_of_just_its_cells() -> None:
    assert onward([move(0, 0, 1, chunks=2), move(1, 1, 2, chunks=2)]) == {0: 1}
    assert onward([move(0, 0, 1, chunks=2), move(1, 1, 2, chunks=1)]) == {}
    assert onward([move(0, 0, 1, chunks=1), move(1, 1, 2, chunks=2)]) == {}


def test_a_message_that_is_partly_replaced_does_not_go_on() -> None:
    assert onward([move(0, 0, 1, chunks=2), move(1, 3, 1, first=1), move(2, 1, 2, chunks=2)]) == {}
    assert onward([move(0, 0, 1, chunks=2), move(1, 3, 1, first=0), move(2, 1, 2, chunks=2)]) == {}


def test_a_message_goes_on_once() -> None:
    assert onward([move(0, 0, 1), move(1, 1, 2), move(2, 1, 3)]) == {0: 1}


def test_a_sum_that_its_rank_adds_to_or_sends_later_is_kept() -> None:
    transfers = [move(0, 0, 1, add=True), move(1, 1, 2), move(2, 3, 1, add=True), move(3, 1, 2)]
    assert kept(transfers, set()) == {1}
    replaced = [move(0, 0, 1, add=True), move(1, 1, 2), move(2, 3, 1), move(3, 1, 2)]
    assert kept(replaced, set()) == set()
    assert kept(replaced, {(1, BufferOffset("i", 0))}) == {3}
