"""The faults of `mutation.toml` can still be planted: each text is in its file exactly once; its tests are there."""

import ast

import pytest

from mutation import SOURCES, TESTS, Mutant, ended, mutants


@pytest.mark.parametrize("mutant", [pytest.param(each, id=each.name) for each in mutants()])
def test_a_mutant_applies(mutant: Mutant) -> None:
    text = (SOURCES / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert ast.dump(ast.parse(text.replace(mutant.old, mutant.new))) != ast.dump(ast.parse(text))
    assert all((TESTS / each).is_file() for each in mutant.tests)


def test_every_mutant_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in mutants()]
    assert len(set(names)) == len(names) >= 30


def test_a_mutant_is_killed_by_a_test_and_not_by_tests_that_do_not_run() -> None:
    assert (
        ended(1, "F\nFAILED tests/test_x.py::test_y[a-b] - assert 1 == 2\n1 failed") == "tests/test_x.py::test_y[a-b]"
    )
    assert ended(1, "+++++++++ Timeout +++++++++") == "the end of the tests with code 1"
    assert ended(-11, "Fatal Python error") == "the end of the tests with code -11"
    assert ended(0, "3 passed") is None
    with pytest.raises(RuntimeError, match="the tests did not run"):
        ended(2, "ERROR tests/test_x.py - ImportError")
