"""Public tests: `pytest` runs them. The grader has more cases, and looks at your answers, too."""

import answers
import cases
import choice
import counted
import groups
import hypercube
import numpy as np
import pytest
import ring
import trees
import variant

from collectives import verify
from collectives.core.traffic import traffic
from collectives_course.local import run
from collectives_course.world import Network


def total(arguments):
    return np.sum([each[0] for each in arguments], axis=0).tolist()


@pytest.mark.parametrize("program", ["hypercube", "groups", "trees", "ring", "counted", "choice"])
def test_answers_have_their_form(program):
    told = getattr(answers, program)()
    assert set(told) == {"kind", "where", "how_much"}
    assert told["kind"] in answers.KINDS
    assert told["where"] == sorted(told["where"])


def test_hypercube():
    verify(hypercube.schedule())


def test_groups():
    played = run(groups.total, cases.groups(), Network(small_buffers=True))
    for first in (group[0] for group in variant.GROUPS):
        assert played.arguments[first][0].tolist() == total(cases.groups())


def test_trees():
    verify(trees.schedule())
    assert traffic(trees.schedule(), variant.BYTES).sent.max() <= 2 * variant.BYTES


def test_ring():
    played = run(ring.all_reduce, cases.ring())
    assert [after.tolist() for (after,) in played.arguments] == [total(cases.ring())] * variant.RING
    assert max(message.bytes for message in played.sent) == 8 * variant.ELEMENTS


def test_counted():
    played = run(counted.all_reduce, cases.counted())
    assert played.values == played.bytes_sent(len(played.values))


@pytest.mark.parametrize("elements", [16, 200, 1000])
def test_choice(elements):
    played = run(choice.all_reduce, cases.choice(elements))
    assert all(after[0].tolist() == total(cases.choice(elements)) for after in played.arguments)
