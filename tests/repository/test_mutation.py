"""The faults of `mutation.toml` can still be planted: each text is in its file exactly once.

Its tests are there.
"""

import ast

import pytest

from mutation import SOURCES, TESTS, Mutant, mutants


@pytest.mark.parametrize("mutant", [pytest.param(each, id=each.name) for each in mutants()])
def test_a_mutant_applies(mutant: Mutant) -> None:
    text = (SOURCES / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert ast.dump(ast.parse(text.replace(mutant.old, mutant.new))) != ast.dump(ast.parse(text))
    assert all((TESTS / each).is_file() for each in mutant.tests)
