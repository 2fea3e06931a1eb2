"""The ledger is refused where it cannot be judged, and a verdict follows from the values alone."""

import re
from pathlib import Path

import pytest
import yaml

from collectives_book import claim_checks, claims
from collectives_book.claims import Claim, Given, Values, judge
from places import ROOT

# The figures of one source are compared with rows that `make experiments` simulates.
RECORDED = {"jeaugey2019": pytest.mark.extended}
KEYS = [pytest.param(key, marks=RECORDED.get(key, pytest.mark.integration)) for key in claims.sources()]

FIELDS = {"at": "1", "words": "some words", "says": "One is one.", "states": 1, "found": "It is {}.", "page": "trust"}
WRONG = Claim(**FIELDS, check=2)
UNDER = {"condition": "two is halved", "check": {"ratio": [2, 2]}}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('at: "2 4"', 'at: "2"', "sentences of dailydose without an entry: got [('4', 1)]"),
        ('at: "2 4"', 'at: "2 4 99"', "entries of dailydose for sentences that were not counted: got [('99', 1)]"),
        ("single matrix with", "single matrix with many more words", "words: String should match pattern"),
        ("{proved: one_shot}", "{prove: one_shot}", "unknown check 'prove': did you mean 'proved'?"),
        ("{proved: one_shot}", "{proved: one_shot, rank: 4}", "check proved: rank: Unexpected keyword argument, got 4"),
        ("{proved: one_shot}", "{proved: one_shot, ranks: few}", "check proved: ranks: invalid literal"),
        ("{proved: one_shot}", "{ratio: {prove: one_shot}}", "unknown check 'prove'"),
        ("{proved: one_shot}", "{}", "not a check: got {}"),
        ("{proved: one_shot}", "__import__", "unknown check '__import__'"),
        ("rule: less than", "rule: about", "rule: Input should be 'equal', 'less than'"),
        ("states: true, ", "", "states: Field required"),
        ('why: "announces the text"', 'why: ""', "why: String should have at least 1 character"),
    ],
)
def test_a_file_that_cannot_be_judged_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = claims.FILE.read_text(encoding="utf8")
    assert old in text
    path = tmp_path / "claims.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf8")
    with pytest.raises(ValueError, match=re.escape(message)):
        claims.read(path)


def test_every_source_is_on_the_page_and_every_claim_leads_to_a_page_of_the_book() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    pages = {entry["file"].removeprefix("chapters/") for part in toc["parts"] for entry in part["chapters"]}
    assert {each.page for source in claims.read() for each in source.entries if isinstance(each, Claim)} <= pages
    text = (ROOT / "chapters" / "claims.md").read_text(encoding="utf8")
    assert set(claims.sources()) <= set(re.findall(r"\{cite:p\}`([^`]+)`", text))


def spoilt(found: Values, sign: int) -> Values:
    """Other values of the same kinds, larger by far, or smaller."""
    return tuple(
        not each if isinstance(each, bool) else f"not {each}" if isinstance(each, str) else sign * 1e3 * (abs(each) + 1)
        for each in found
    )


@pytest.mark.parametrize("key", KEYS)
def test_entries_compute_and_their_verdicts_follow_from_the_values(key: str) -> None:
    for each in claims.judged(key):
        if not isinstance(each.entry, Claim):
            continue
        assert (each.entry.given is None) == (each.verdict in {"holds", "does not hold"})  # needed, and it suffices
        if each.verdict == "holds":
            wrong = [[*spoilt(each.found, sign)] for sign in (1, -1)]
            planted = [judge(each.entry.model_copy(update={"check": lambda one=one: one})) for one in wrong]
            assert "does not hold" in {one.verdict for one in planted}
        else:  # had the source said so
            said = each.entry.model_copy(update={"states": each.found, "rule": "equal"})
            assert judge(said).verdict == "holds"


def test_a_planted_wrong_value_flips_the_verdict() -> None:
    right = WRONG.model_copy(update={"check": lambda: 1.0})
    if_halved = WRONG.model_copy(update={"given": Given(**UNDER)})
    never = WRONG.model_copy(update={"given": Given(**UNDER, states=3)})
    assert [judge(each).verdict for each in (right, WRONG, if_halved, never)] == [
        "holds",
        "does not hold",
        "holds if",
        "does not hold",
    ]


def test_without_a_checkout_the_ledger_says_what_it_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_checks, "CHECKOUT", tmp_path)
    with pytest.raises(FileNotFoundError, match=f"no checkout: got {tmp_path}, expected a folder with chapters/"):
        claim_checks.reference("sanders2009", ["year"])
