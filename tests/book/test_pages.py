"""What the pages say and cite, checked on their sources; tests/book/test_site.py looks at the built site."""

import re
from pathlib import Path

import pytest
from pybtex.database import Entry, parse_file

from places import ROOT

CHAPTERS = sorted((ROOT / "chapters").glob("*.md"))
SOURCES = [*CHAPTERS, ROOT / "README.md", *(ROOT / "src").rglob("*.py"), *(ROOT / "experiments").glob("*.ipynb")]
ENTRIES: dict[str, Entry] = dict(parse_file(ROOT / "chapters" / "references.bib").entries)
CITED = [
    key
    for chapter in CHAPTERS
    for keys in re.findall(r"\{cite:[a-z]+\}`([^`]+)`", chapter.read_text(encoding="utf8"))
    for key in keys.split(",")
]
# No source that could be read names its pages, or it is a lecture.
WITHOUT_PAGES = {"barnett1994", "padmanabhan2023"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_confidence_is_claimed_whatever_the_samples(path: Path) -> None:
    """It is computed from their number (`statements.intervals`): three samples give 75%, five 93.75%."""
    claims = re.findall(r".{0,40}95 ?% (?:interval|confidence).{0,20}", path.read_text(encoding="utf8"))
    assert not claims


@pytest.mark.parametrize(
    "path",
    [
        ROOT / "chapters/massive-scale.md",
        ROOT / "src/collectives_book/nccl_formulas.py",
        ROOT / "src/collectives/machines/summit.yaml",
    ],
    ids=lambda path: path.name,
)
def test_four_rings_are_called_an_inference_wherever_they_are_used(path: Path) -> None:
    text = path.read_text(encoding="utf8")
    used = [
        text[max(0, at.start() - 150) : at.end() + 150] for at in re.finditer(r"[Ff]our (?:rings|channels)\b", text)
    ]
    assert not [around for around in used if "infer" not in around]


def test_everything_cited_is_listed_and_the_other_way_round() -> None:
    assert sorted(set(CITED)) == sorted(ENTRIES)


def test_labels_tell_references_apart() -> None:
    labels = [("; ".join(map(str, entry.persons["author"])), entry.fields["year"]) for entry in ENTRIES.values()]
    assert sorted(set(labels)) == sorted(labels)


@pytest.mark.parametrize("key", ENTRIES)
def test_a_reference_can_be_found_again(key: str) -> None:
    entry = ENTRIES[key]
    assert not re.search(r"/(?:blob|tree|raw)/(?:master|main|HEAD)/", entry.fields.get("url", "")), (
        "name a tag or commit"
    )
    assert entry.type == "misc" or "pages" in entry.fields or key in WITHOUT_PAGES
    assert "url" in entry.fields or entry.type != "misc"


@pytest.mark.parametrize("key", ENTRIES)
def test_names_of_files_keep_their_capitals(key: str) -> None:
    """The list writes titles in lower case, but for what is in braces."""
    title = re.sub(r"\{[^}]*\}", "", ENTRIES[key].fields["title"])
    assert not [word for word in title.split() if "/" in word and word != word.lower()]
