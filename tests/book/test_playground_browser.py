"""The playground in Chromium: it reads, proves and marks as Python does, and its link carries what was written."""

import importlib
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from test_player_browser import WIDEST, copy_player, page, write

from browsers import TELEPHONE, needs_browser
from collectives.algorithms import build, executable
from collectives.contracts import ROOTED
from collectives.figures.player import write_scripts
from collectives.grid import grid, parse_grid
from collectives.schedule import ScheduleError

__all__ = ["page"]

JUDGE = """
cases => cases.map(([text, collective, p, root]) => {
  const { parseGrid, prove } = schedulePlayer;
  try {
    const fault = prove(parseGrid(text, collective, p, root));
    return fault ? [fault.message, fault.mark.step, fault.mark.rank, fault.mark.note] : null;
  } catch (error) {
    return [error.message];
  }
})
"""
Case = tuple[str, str, int, int | None]

pytestmark = [
    pytest.mark.extended,
    needs_browser,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("playground")
    copy_player(folder)
    write_scripts(folder / "schedules")
    write(folder / "page.html", "<schedule-playground></schedule-playground>")
    return folder


def opened(page: Page, folder: Path, link: str = "") -> Locator:
    page.emulate_media(reduced_motion="reduce")
    page.goto((folder / "page.html").as_uri() + link)
    ground = page.locator("schedule-playground")
    expect(ground).to_have_attribute("data-ready", "true")
    return ground


def judged(monkeypatch: pytest.MonkeyPatch, case: Case) -> list[Any] | None:
    """What Python says: nothing, a message with the cell that `verify` marks, or an error of `parse_grid`."""
    module, marks = importlib.import_module("collectives.verify"), []
    told = module._error
    monkeypatch.setattr(module, "_error", lambda schedule, what, mark: marks.append(mark) or told(schedule, what, mark))
    text, collective, p, root = case
    try:
        module.verify(parse_grid(text, collective, p, root=root))
    except ScheduleError as error:
        return [str(error).split("\n")[0], *(marks[-1] if marks else ())]
    finally:
        monkeypatch.undo()
    return None


def right() -> Iterator[Case]:
    for collective, algorithm in executable():
        for p in (2, 3, 5, 8):
            options = {"root": p - 1} if collective in ROOTED else {}
            schedule = build(collective, algorithm, p, **options)
            yield grid(schedule, whole=True), collective, p, schedule.root


def mistyped(case: Case, chance: random.Random) -> Case:
    """One letter removed, replaced, or put in."""
    text, *rest = case
    at, letter = chance.randrange(len(text)), chance.choice("0123456789+=<,-| x()\n")
    new = [text[:at] + text[at + 1 :], text[:at] + letter + text[at + 1 :], text[:at] + letter + text[at:]]
    return chance.choice(new), *rest


def changed(case: Case, chance: random.Random) -> Case:
    """One cell's message gone, added instead of replaced, or of another chunk or rank."""
    text, collective, p, root = case
    found = chance.choice(list(re.finditer(r"([+=])(\d+)([-\d]*)<(\d+)", text)))
    sign, chunk, more, src = found.groups()
    other = chance.choice(["", f"{'+='[sign == '+']}{chunk}{more}<{src}", f"{sign}{chance.randrange(p)}<{src}",
                           f"{sign}{chunk}{more}<{chance.randrange(p)}"])  # fmt: skip
    return text[: found.start()] + other + text[found.end() :], collective, p, root


def test_it_judges_as_python_does(page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(page, folder)
    cases, chance = list(right()), random.Random(17)
    wrong = [edit(chance.choice(cases), chance) for edit in (mistyped, changed) for _ in range(200)]
    found = page.evaluate(JUDGE, cases + wrong)
    assert found[: len(cases)] == [None] * len(cases)
    expected = [judged(monkeypatch, case) for case in wrong]
    for case, here, there in zip(wrong, found[len(cases) :], expected, strict=True):
        assert here == there, case[0]
    proved = [one for one in expected if one and len(one) > 1]
    assert min(len(proved), sum(one is not None and len(one) == 1 for one in expected)) > 50


def test_a_mistake_is_named_as_one_types(page: Page, folder: Path) -> None:
    ground = opened(page, folder)
    expect(ground).to_have_attribute("data-state", "right")
    text = ground.get_by_label("Schedule: a line")
    good = text.input_value()
    text.fill(good.replace("+2<3", "+2<9", 1))
    expect(ground.get_by_role("status")).to_contain_text("line 2, column 11: got '9', expected another rank, 0 to 3")
    ground.get_by_role("button", name="Go to this place").click()
    assert page.evaluate("(t => t.value.slice(t.selectionStart, t.selectionEnd))(document.activeElement)") == "9"
    text.fill(good.replace("+2<3", "+1<3", 1))
    expect(ground).to_have_attribute("data-state", "wrong")
    expect(ground.locator("mark")).to_contain_text("<--")
    text.fill(good)
    expect(ground).to_have_attribute("data-state", "right")
    expect(ground.locator("schedule-player")).to_have_attribute("data-steps", "6")


def test_the_link_carries_the_text(page: Page, folder: Path) -> None:
    ground = opened(page, folder, "#reduce--flat--3")
    expect(ground.locator(".pg-collective")).to_have_value("reduce")
    text = ground.get_by_label("Schedule: a line")
    text.fill(text.input_value().replace("<1,2", "<1"))
    expect(ground).to_have_attribute("data-state", "wrong")
    told, link = ground.get_by_role("status").inner_text(), "#" + page.url.partition("#")[2]
    page.goto("about:blank")
    again = opened(page, folder, link)
    assert again.get_by_role("status").inner_text() == told
    assert 'collective="reduce", p=3, root=0' in again.get_by_label("The same in Python").input_value()


PLACES = """all => all.map(node => [node.getAttribute("cx"), node.getAttribute("cy")].map(Number))"""


def test_ranks_are_drawn_where_the_link_has_them(page: Page, folder: Path) -> None:
    ground = opened(page, folder, "#c=all_gather&p=3&a=ring&xy=0,5 100,20 40,90")
    expect(ground).to_have_attribute("data-state", "right")
    drawn = ground.locator("circle.sp-rank").evaluate_all(PLACES)
    assert drawn == [[0, 5], [100, 20], [40, 90]]
    ground.locator(".pg-example").select_option("bruck")
    assert "xy=0%2C5+100%2C20+40%2C90" in page.url
    assert ground.locator("circle.sp-rank").evaluate_all(PLACES) == drawn


@pytest.mark.parametrize(
    "link",
    [
        *("#%", "#c=gossip&p=99", "#c=reduce&p=4&r=77&t=%00", "#a--b--c", "#t=<script>", "#c=x--y"),
        *("#c=reduce&p=4&xy=7", "#c=reduce&p=2&xy=0,0 0,0", "#xy=<b>,1", "#p=2&xy=-1,5 1e9,0"),
    ],
)
def test_a_strange_link_does_no_harm(page: Page, folder: Path, link: str) -> None:
    assert opened(page, folder, link).get_attribute("data-state") in ("right", "error")


def test_examples_say_what_they_are(page: Page, folder: Path) -> None:
    ground = opened(page, folder)
    examples = ground.locator(".pg-example")
    for group, state in (("Right", "right"), ("Broken", "wrong")):
        for value in examples.locator(f"optgroup[label={group}] option").evaluate_all("all => all.map(x => x.value)"):
            examples.select_option(value)
            expect(ground).to_have_attribute("data-state", state)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_telephone(page: Page, folder: Path, theme: str) -> None:
    page.set_viewport_size(TELEPHONE | {"width": 360})
    ground = opened(page, folder)
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    ground.locator(".pg-p").select_option("16")
    expect(ground.locator("schedule-player")).to_have_attribute("data-steps", "30")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(WIDEST) <= 360
