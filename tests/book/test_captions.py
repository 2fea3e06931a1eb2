"""Every measured figure of a chapter has a caption with its source, by `measured.sourced`."""

import re
from pathlib import Path

import pytest

from places import ROOT

CHAPTERS = ROOT / "chapters"
# A figure of rows that ends a cell without its source. massive-scale draws what is simulated or published.
BARE = re.compile(
    r"^\w*(?:figures|scaling)\.(?:time|times|time_against_\w+|bandwidth\w*|losses|rates|resumed|timeline|exposed|speed"
    r"|efficiency|sent|idle|staleness|loss)\(",
    re.MULTILINE,
)
CELL = re.compile(r"```\{code-cell\}.*?```", re.DOTALL)


# Its text names the source itself.
PREFACE = "preface"


@pytest.mark.parametrize(
    "page", sorted({*CHAPTERS.glob("*.md")} - {CHAPTERS / f"{PREFACE}.md"}), ids=lambda page: page.stem
)
def test_a_measured_figure_names_its_source(page: Path) -> None:
    text = page.read_text()
    if "collectives_book.massive_scale" in text:
        return
    assert not [found.group() for cell in CELL.findall(text) for found in BARE.finditer(cell)]
