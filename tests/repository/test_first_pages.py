"""The first pages are pages of the book, in its order, and show no result of an experiment."""

import re
from types import ModuleType

import pytest
import yaml

from places import ROOT, script

BOOK = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))


@pytest.fixture(name="script")
def first_pages() -> ModuleType:
    return script("first_pages")


def pages(contents: dict[str, object]) -> list[str]:
    return re.findall(r"(?:root|file): (\S+)", yaml.safe_dump(contents, sort_keys=False))


def test_they_begin_where_the_book_does_and_are_pages_of_it(script: ModuleType) -> None:
    first = pages(script.contents(BOOK))
    assert len(first) >= 8
    assert first[0] == BOOK["parts"][0]["chapters"][0]["file"]
    assert [page for page in pages(BOOK) if page in first] == first


def test_none_of_them_shows_a_result_of_an_experiment(script: ModuleType) -> None:
    assert "results/quick" in (ROOT / "chapters" / "preface.md").read_text(encoding="utf8")
    for page in pages(script.contents(BOOK)):
        assert "results/quick" not in (ROOT / f"{page}.md").read_text(encoding="utf8"), page
