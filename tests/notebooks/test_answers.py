"""The table that answers which all-reduce to use: every place and size has a change, and a row what was simulated."""

import pytest

from collectives.expected import asked
from collectives_book import answers


def test_every_place_and_size_has_a_change() -> None:
    keys = {(place.preset, place.nodes, size) for place in answers.PLACES for size in answers.SIZES}
    assert keys == {*answers.CHANGES}


def test_the_fastest_is_no_slower_than_the_choice_and_both_are_in_the_table() -> None:
    place = answers.Place("32 nodes", "ethernet", 32, "ampere")
    what = asked("all_reduce", place.preset, place.nodes, generation=place.generation)
    assert what.job is not None
    answer = answers._answer(place, what, 64 << 10)
    choice = answers.simulated(what, answers.OURS[answer.choice.algorithm], 64 << 10)
    assert answer.gain == pytest.approx(choice["seconds"] / answer.fastest["seconds"])
    assert answer.gain >= 1
    (line,) = answers.table([answer]).to_dict("records")
    assert line["NCCL"] == "Tree"
    assert line["fastest"].startswith(answer.fastest["algorithm"])
    assert line["change"] == answer.change


def test_a_machine_whose_gpus_nccl_does_not_know_is_refused() -> None:
    place = answers.Place("32 nodes", "ethernet", 32)
    with pytest.raises(ValueError, match="GPUs of ethernet: got none"):
        answers._answer(place, asked("all_reduce", place.preset, place.nodes), 64 << 10)


def test_a_lead_within_the_model_s_error_is_a_tie() -> None:
    place = answers.PLACES[-1]
    what = asked("all_reduce", place.preset, place.nodes, generation=place.generation)
    found = answers._answer(place, what, 64 << 10)
    seconds = found.fastest["seconds"]
    for longer, fastest in ((1.08, "a tie"), (1.2, f"{found.fastest['algorithm']}, 1.2×")):
        default = found.default | {"seconds": longer * seconds}
        answer = found._replace(nbytes=25 << 20, default=default)
        (line,) = answers.table([answer]).to_dict("records")
        assert (line["fastest"], answer.is_tie) == (fastest, longer < 1.1)
