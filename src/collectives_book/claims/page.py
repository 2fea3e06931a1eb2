"""All sources of the ledger, every entry judged, and the page about them: MyST text of summary, slips and entries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from collectives_book.claims import baidu, introductions, lecture, nccl, pico, subonis
from collectives_book.claims.ledger import (
    EQUAL,
    EXCLUDED,
    FAILS,
    HOLDS,
    HOLDS_IF,
    VERDICTS,
    Claim,
    Excluded,
    JudgedClaim,
    Scalar,
    Value,
    count,
    judge,
    places,
)
from collectives_book.figures.statements import listed

# In the order of the page.
SOURCES = (
    introductions.DAILY_DOSE,
    baidu.SOURCE,
    introductions.APX,
    lecture.SOURCE,
    subonis.SOURCE,
    nccl.SOURCE,
    pico.SOURCE,
)

# Narrow enough for a phone.
SHORT = {HOLDS: "holds", HOLDS_IF: "if", FAILS: "not", EXCLUDED: "out"}
SIGNS = {HOLDS: "✓", HOLDS_IF: "(✓)", FAILS: "✗", EXCLUDED: "–"}


@cache
def verdicts(key: str) -> tuple[JudgedClaim | Excluded, ...]:
    """Every entry of the source with this key, judged."""
    (source,) = (each for each in SOURCES if each.key == key)
    return tuple(judge(entry) if isinstance(entry, Claim) else entry for entry in source.entries)


def write(value: Value) -> str:
    """A value as a sentence has it.

    >>> write(True), write((1.0, 2.5, 24576)), write("2009")
    ('yes', '1, 2.5 and 24,576', '2009')
    """
    if isinstance(value, tuple):
        once = tuple(dict.fromkeys(value)) if len(set(value)) == 1 else value
        return listed([_scalar(each) for each in once])
    return _scalar(value)


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    written = f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"
    return written.replace("-", "−")


def summary() -> str:
    """How many claims of which source hold, as a table."""
    head = f"| source | {' | '.join(SHORT[verdict] for verdict in VERDICTS)} |\n|---|{'--:|' * len(VERDICTS)}\n"
    rows = [(each.name, count(verdicts(each.key))) for each in SOURCES]
    all_of_them = {verdict: sum(counts[verdict] for _, counts in rows) for verdict in VERDICTS}
    return head + "\n".join(_row(name, counts) for name, counts in [*rows, ("all", all_of_them)])


def totals() -> str:
    """The same in a sentence, with the number of counted sentences."""
    counts = count([entry for each in SOURCES for entry in verdicts(each.key)])
    judged = sum(counts.values()) - counts[EXCLUDED]
    sentences = sum(sum(each.sentences.values()) for each in SOURCES)
    return (
        f"{sentences} sentences count. They form {sum(counts.values())} entries. "
        f"Of {judged} claims {counts[HOLDS]} hold, "
        f"{counts[HOLDS_IF]} hold under a condition and {counts[FAILS]} do not hold. "
        f"{counts[EXCLUDED]} entries are excluded, with a reason."
    )


def _row(name: str, counts: dict[str, int]) -> str:
    return f"| {name} | {' | '.join(str(counts[verdict]) for verdict in VERDICTS)} |"


def slips(verdict: str) -> str:
    """The claims of all sources that have this verdict: a list."""
    return "\n".join(
        f"- {each.name}: {_slip(entry)}"
        for each in SOURCES
        for entry in verdicts(each.key)
        if isinstance(entry, JudgedClaim) and entry.verdict == verdict
    )


def _slip(entry: JudgedClaim) -> str:
    return f"*{entry.claim.says}* {_said(entry)} See {{doc}}`{entry.claim.page}`."


def entries(key: str) -> str:
    """All entries of one source, in their order: a definition list that opens on a click."""
    (source,) = (each for each in SOURCES if each.key == key)
    found = verdicts(key)
    listed_here = "\n\n".join(_entry(entry, source.counted) for entry in found)
    return f":::{{dropdown}} {_title(found)}\n{listed_here}\n:::"


def _title(found: Sequence[JudgedClaim | Excluded]) -> str:
    counts = count(found)
    judged = f"{counts[HOLDS]} hold, {counts[HOLDS_IF]} under a condition, {counts[FAILS]} not"
    return f"{len(found)} entries: {judged}; {counts[EXCLUDED]} excluded"


def _entry(entry: JudgedClaim | Excluded, counted: str) -> str:
    about = entry.claim if isinstance(entry, JudgedClaim) else entry
    lines = [_verdict(entry), _where(about.at, about.words, counted)]
    if isinstance(entry, JudgedClaim):
        lines.insert(
            1,
            f"{_computed(entry)} {entry.claim.note}".strip()
            + f" Rule: {_rule(entry.claim)}. See {{doc}}`{entry.claim.page}`.",
        )
    return f"{about.says}\n" + "\n".join(f": {line}\n" for line in lines)


def _verdict(entry: JudgedClaim | Excluded) -> str:
    if isinstance(entry, Excluded):
        return f"{SIGNS[EXCLUDED]} **Excluded**: {entry.why}."
    given = entry.claim.given
    condition = f" {given.condition}" if given is not None and entry.verdict == HOLDS_IF else ""
    return f"{SIGNS[entry.verdict]} **{entry.verdict.capitalize()}**{condition}."


def _rule(claim: Claim) -> str:
    """A rule other than equality, with the value that it compares with."""
    form = claim.form or write
    return claim.rule.words if claim.rule is EQUAL else f"{claim.rule.words}, {form(claim.stated)}"


def _said(entry: JudgedClaim) -> str:
    return f"{_computed(entry)} {entry.claim.note}".strip()


def _computed(entry: JudgedClaim) -> str:
    form = entry.claim.form or write
    said = entry.claim.found.format(form(entry.found))
    if entry.under is None or entry.claim.given is None:
        return said
    return f"{said} If {entry.claim.given.condition}: {form(entry.under)}."


def _where(at: str, words: str, counted: str) -> str:
    paragraphs = list(dict.fromkeys(paragraph for paragraph, _ in places(at)))
    if not paragraphs[0].isdigit():  # no text to quote from: the entry describes the place
        return f"Where: {at.replace('.', ' ')}, {words}."
    return f"Where: {counted}{'s' * (len(paragraphs) > 1)} {listed(paragraphs)}, “{words}”."
