"""The first pages: some that show no result, in the book's order, and the time since `make` began."""

import re
from pathlib import Path
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


def test_the_time_counts_from_when_make_began(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEGAN", "1000")
    assert script.elapsed(1160.4) == "2 min 40 s"
    monkeypatch.delenv("BEGAN")
    assert script.elapsed(1160.4) == "0 min 0 s"


def test_it_says_where_they_are(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump(BOOK))
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "build", lambda toc: None)
    script.main()
    (uri,) = re.findall(r"==> first pages after \d+ min \d+ s.*: (file://\S+)\n", capsys.readouterr().out)
    assert uri == (tmp_path / "_build/first-pages/_build/html/index.html").as_uri()
