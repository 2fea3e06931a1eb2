"""The ledger covers what was counted, every entry computes, and a verdict follows from the values alone."""

import re
from functools import partial
from pathlib import Path

import pytest
import yaml

from collectives_book.claims import checks, page
from collectives_book.claims.ledger import (
    EQUAL,
    EXCLUDED,
    FAILS,
    HOLDS,
    HOLDS_IF,
    VERDICTS,
    Claim,
    Excluded,
    Given,
    JudgedClaim,
    Source,
    Value,
    count,
    judge,
    uncovered,
)
from collectives_book.claims.page import SOURCES, verdicts
from places import ROOT

ENTRIES = [(source, entry) for source in SOURCES for entry in source.entries]
# The figures of one source are compared with rows that `make experiments` simulates.
RECORDED = {"jeaugey2019": [pytest.mark.extended]}
JUDGED = [
    pytest.param(
        source.key, nth, marks=RECORDED.get(source.key, [pytest.mark.integration]), id=f"{source.key}-{entry.at}"
    )
    for source in SOURCES
    for nth, entry in enumerate(source.entries)
    if isinstance(entry, Claim)
]
ONE = Claim("1", "some words", "One is one.", 1.0, lambda: 1.0, EQUAL, "It is {}.", "cost-model")


def named(source_entry: tuple[Source, Claim | Excluded]) -> str:
    return f"{source_entry[0].key}-{source_entry[1].at}"


def test_every_counted_sentence_has_an_entry_and_no_other() -> None:
    assert {source.key: uncovered(source) for source in SOURCES} == {source.key: set() for source in SOURCES}


def test_the_count_of_each_source() -> None:
    """Counted by hand in the texts, which are not ours to copy here."""
    assert {source.key: sum(source.sentences.values()) for source in SOURCES} == {
        "dailydose": 29,
        "gibiansky2017": 14,
        "apx": 13,
        "padmanabhan2023": 50,
        "subonis": 42,
        "jeaugey2019": 22,
        "pico2025": 9,
    }


def test_a_missing_entry_and_a_surplus_one_are_noticed() -> None:
    (first, *rest) = SOURCES[0].entries
    assert uncovered(SOURCES[0]._replace(entries=rest)) == {("2", 1), ("4", 1)}
    assert uncovered(SOURCES[0]._replace(entries=(first, *rest, ONE))) == {("1", 1)}


@pytest.mark.parametrize("source_entry", ENTRIES, ids=named)
def test_an_entry_copies_at_most_five_words(source_entry: tuple[Source, Claim | Excluded]) -> None:
    assert len(source_entry[1].words.split()) <= 5


@pytest.mark.parametrize("source_entry", [each for each in ENTRIES if isinstance(each[1], Claim)], ids=named)
def test_an_entry_leads_to_a_page_of_the_book(source_entry: tuple[Source, Claim]) -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    pages = {entry["file"] for part in toc["parts"] for entry in part["chapters"]}
    assert f"chapters/{source_entry[1].page}" in pages


def test_an_excluded_entry_has_a_reason() -> None:
    assert all(entry.why for _, entry in ENTRIES if isinstance(entry, Excluded))


def test_every_source_is_cited_on_the_page() -> None:
    text = (ROOT / "chapters" / "claims.md").read_text(encoding="utf8")
    assert {source.key for source in SOURCES} <= set(re.findall(r"\{cite:p\}`([^`]+)`", text))
    assert {source.key for source in SOURCES} == set(re.findall(r'page\.entries\("([^"]+)"\)', text))


def same(value: Value) -> Value:
    return value


def spoilt(value: Value) -> Value:
    """Another value of the same kind, smaller or larger by far."""
    if isinstance(value, tuple):
        return tuple(other for each in value if not isinstance(other := spoilt(each), tuple))
    if isinstance(value, bool):
        return not value
    return f"not {value}" if isinstance(value, str) else 1e3 * abs(value) + 1e3


def shrunk(value: Value) -> Value:
    other = spoilt(value)
    if isinstance(other, tuple):
        return tuple(each if isinstance(each, str | bool) else -each for each in other)
    return other if isinstance(other, str | bool) else -other


@pytest.mark.parametrize(("key", "nth"), JUDGED)
def test_an_entry_computes_and_its_verdict_follows_from_the_value(key: str, nth: int) -> None:
    judged = verdicts(key)[nth]
    assert isinstance(judged, JudgedClaim)
    claim = judged.claim
    assert judged.verdict in VERDICTS
    if judged.verdict == HOLDS:
        planted = [
            judge(claim._replace(find=partial(same, wrong), given=None))
            for wrong in (spoilt(judged.found), shrunk(judged.found))
        ]
        assert FAILS in {each.verdict for each in planted}
    else:
        assert judge(claim._replace(stated=judged.found, rule=EQUAL)).verdict == HOLDS  # had the source said so


@pytest.mark.parametrize(("key", "nth"), JUDGED)
def test_a_condition_is_needed_and_suffices(key: str, nth: int) -> None:
    judged = verdicts(key)[nth]
    assert isinstance(judged, JudgedClaim)
    assert (judged.claim.given is None) == (judged.verdict in {HOLDS, FAILS})


def test_a_planted_wrong_value_flips_the_verdict() -> None:
    wrong = ONE._replace(find=lambda: 2.0)
    under = Given("two is halved", lambda: 1.0)
    assert [judge(each).verdict for each in (ONE, wrong, wrong._replace(given=under))] == [HOLDS, FAILS, HOLDS_IF]
    assert judge(wrong._replace(given=under._replace(find=lambda: 3.0))).verdict == FAILS


def test_verdicts_are_counted() -> None:
    entries = [judge(ONE), judge(ONE._replace(find=lambda: 2.0)), Excluded("2", "a year", "It is 2019.", "history")]
    assert count(entries) == {HOLDS: 1, HOLDS_IF: 0, FAILS: 1, EXCLUDED: 1}


@pytest.mark.extended
def test_the_page_shows_every_entry_with_its_value() -> None:
    for source in SOURCES:
        text = page.entries(source.key)
        assert text.count("Where: ") == len(source.entries)
        assert "{}" not in text
    assert page.summary().count("\n") == len(SOURCES) + 2


def test_without_a_checkout_the_ledger_says_what_it_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECKOUT", tmp_path)
    with pytest.raises(FileNotFoundError, match=f"no checkout: got {tmp_path}, expected a folder with chapters/"):
        checks.reference("sanders2009", "year")
