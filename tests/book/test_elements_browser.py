"""The player, the race, the playground and the explorer in Chromium, in pages from disk: no server, no network."""

import importlib
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, expect

from browsers import TELEPHONE, needs_browser
from collectives.algorithms import ALGORITHMS, build, executable
from collectives.core.bounds import lower_bound
from collectives.core.contracts import CONTRACTS, ROOTED
from collectives.core.grid import grid, parse_grid
from collectives.core.schedule import ScheduleError
from collectives.figures.explorer import OFFERED, PRESETS, Explorer, explorer, explorer_data
from collectives.figures.player import player, write_scripts
from collectives_book.race import race
from interop.programs import all_pairs
from places import ROOT

STATIC = ROOT / "chapters" / "_static"
SETTINGS = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["sphinx"]["config"]
SCRIPTS = [name for name, _ in SETTINGS["html_js_files"]]
STYLES = [name for name in SETTINGS["html_css_files"] if name.startswith(("play", "explorer"))]
ELEMENTS = "schedule-player, schedule-race, schedule-playground, cost-explorer"
WIDEST = "Math.max(...[...document.querySelectorAll('body *')].map(node => node.getBoundingClientRect().right))"
# Chooses every algorithm in the lists, steps through it by key, and says where the end is not what
# was asked.
PLAY_ALL = """
async ranks => {
  const player = document.querySelector("schedule-player");
  const choose = (name, value) => {
    const list = player.querySelector(name);
    list.value = value;
    list.dispatchEvent(new Event("change"));
  };
  const press = key => player.dispatchEvent(new KeyboardEvent("keydown", { key }));
  const played = [];
  for (const { value: algorithm } of [...player.querySelector(".sp-algorithm").options])
    for (const p of ranks) {
      choose(".sp-algorithm", algorithm);
      choose(".sp-p", p);
      const early = [];
      for (let t = 0; t < player.dataset.steps; t++) {
        early.push(player.dataset.complete);
        press("ArrowRight");
      }
      played.push([algorithm, Number(p), player.dataset.step === player.dataset.steps, player.dataset.complete,
                   early.includes("true"), player.querySelector(".sp-text").textContent.includes("Complete:")]);
    }
  return played;
}
"""
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
COMPUTED = """
([data, cases]) => cases.map((at) => {
  const values = costForms.valuesOf(at);
  const times = data.algorithms.map((each) => [each.name, costForms.secondsOf(each, data, values)]);
  return [Object.fromEntries(times.filter(([, seconds]) => seconds !== null)), costForms.boundOf(data, values)];
})
"""
Case = tuple[str, str, int, int | None]

pytestmark = [pytest.mark.extended, needs_browser]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the elements, and a page for each."""
    folder = tmp_path_factory.mktemp("site")
    copy(folder)
    write_scripts(folder / "schedules")
    for collective in CONTRACTS:
        first = next(name for of, name in ALGORITHMS if of == collective)
        write(folder / f"{collective}.html", player(collective, first, 4, name="one"))
    (folder / "two_blocks.xml").write_text(all_pairs(3), encoding="utf8")
    write(
        folder / "two.html",
        player("all_reduce", "ring", 4, name="one"),
        player("all_reduce", "tree", 5, name="two"),
    )
    write(folder / "own.html", player("all_reduce", f"{folder}/two_blocks.xml", 3, bytes=3072))
    write(folder / "small.html", player("all_reduce", "ring", 4, bytes=2, step=6))
    field = race(
        "all_reduce", ["ring", "two_tree"], 16, on="ethernet", nbytes=8, name="race", autoplay=True
    )
    write(folder / "race.html", field)
    write(folder / "explorer.html", explorer())
    write(folder / "playground.html", "<schedule-playground></schedule-playground>")
    return folder


def copy(folder: Path) -> None:
    for name in (*SCRIPTS, *STYLES):
        shutil.copy(STATIC / name, folder)


def write(path: Path, *elements: Any) -> None:
    styles = "".join(f'<link rel="stylesheet" href="{name}">' for name in STYLES)
    scripts = "".join(f'<script defer src="{name}?v=1"></script>' for name in SCRIPTS)
    body = "".join(each if isinstance(each, str) else each._repr_html_() for each in elements)
    path.write_text(
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>Elements</title>'
        f'<meta name="viewport" content="width=device-width">{styles}{scripts}</head><body>{body}</body></html>',
        encoding="utf8",
    )


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in which nothing moves unless a test asks for it, and nothing may go wrong."""
    complaints: list[str] = []
    with browser.new_context() as context, context.new_page() as page:
        page.set_default_timeout(10_000)
        page.emulate_media(reduced_motion="reduce")
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda line: line.type in ("error", "warning") and complaints.append(line.text),
        )
        page.on("requestfailed", lambda request: complaints.append(request.url))
        yield page
        assert not complaints


def opened(page: Page, folder: Path, name: str, link: str = "") -> Locator:
    """The first element of a page, when all are ready."""
    page.goto("about:blank")  # or another link to the same page would not load it again
    page.goto((folder / f"{name}.html").as_uri() + link)
    for one in page.locator(ELEMENTS).all():
        expect(one).to_have_attribute("data-ready", "true")
    return page.locator(ELEMENTS).first


def text(player: Locator, name: str) -> str:
    return player.locator(f".sp-{name}").inner_text()


@pytest.mark.parametrize(
    ("name", "link"),
    [
        *(
            ("all_to_all", "#one--direct--16--9"),
            ("all_reduce", "#one--two_tree--16--9"),
            ("race", ""),
        ),
        *(("playground", "#all_reduce--ring--16"), ("explorer", "")),
    ],
)
def test_nothing_is_wider_than_a_telephone(page: Page, folder: Path, name: str, link: str) -> None:
    page.set_viewport_size(TELEPHONE)
    opened(page, folder, name, link)
    for theme in ("light", "dark"):
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
        assert page.evaluate(WIDEST) <= TELEPHONE["width"]


@pytest.mark.parametrize(
    ("name", "place", "said"),
    [
        ("two", "schedule-player pre", "step | rank 0 | rank 1"),
        ("explorer", "cost-explorer p", explorer().sentence()),
    ],
)
def test_without_javascript_the_text_is_there(
    browser: Browser, folder: Path, name: str, place: str, said: str
) -> None:
    with browser.new_context(java_script_enabled=False) as context, context.new_page() as page:
        page.goto((folder / f"{name}.html").as_uri())
        assert page.locator(place).first.inner_text().startswith(said)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        (
            "two",
            (
                "#one--no-such--4--2",
                "#one--constructor--4--1",
                "#one--toString--4",
                "#one--ring--99--900",
                "#a-heading",
                "#one--ring--4--x",
                "#%",
            ),
        ),
        (
            "playground",
            (
                "#%",
                "#c=gossip&p=99",
                "#c=reduce&p=4&r=77&t=%00",
                "#a--b--c",
                "#t=<script>",
                "#c=x--y",
            ),
        ),
        ("playground", ("#c=all_reduce&p=2&t=step | rank 0 | rank 1%0A0 | %2B0-4095<1(x1000) |",)),
        (
            "playground",
            ("#c=reduce&p=4&xy=7", "#c=reduce&p=2&xy=0,0 0,0", "#xy=<b>,1", "#p=2&xy=-1,5 1e9,0"),
        ),
    ],
)
def test_a_strange_link_does_no_harm(
    page: Page, folder: Path, name: str, links: tuple[str, ...]
) -> None:
    for link in links:
        shown = opened(page, folder, name, link)
        assert shown.get_attribute("data-steps") or shown.get_attribute("data-state") in (
            "right",
            "error",
        ), link


@pytest.mark.parametrize("collective", CONTRACTS)
def test_every_algorithm_plays_to_its_end(page: Page, folder: Path, collective: str) -> None:
    opened(page, folder, collective)
    ranks = [2, 5, 8]
    played = page.evaluate(PLAY_ALL, ranks)
    expected = []
    for (of, name), algorithm in ALGORITHMS.items():
        if of != collective:
            continue
        for p in ranks:
            # The switch of a node of one rank gives back what the rank has already.
            is_early = name == "nvls_tree" and algorithm(p).ranks_per_node == 1
            expected.append([name, p, True, "true", is_early, True])
    assert played == expected


def test_a_schedule_in_the_element_plays_to_its_end(page: Page, folder: Path) -> None:
    player = opened(page, folder, "own")
    player.locator(".sp-views").focus()
    for step, complete in ((1, "false"), (2, "true")):
        page.keyboard.press("ArrowRight")
        expect(player).to_have_attribute("data-step", str(step))
        expect(player).to_have_attribute("data-complete", complete)
    assert (text(player, "messages"), "4 KiB" in text(player, "bytes")) == ("12 of 12", True)
    assert text(opened(page, folder, "small"), "messages") == "12 of 12"  # empty ones are not sent


def test_a_reader_steps_by_keys_buttons_slider_and_link(page: Page, folder: Path) -> None:
    player = opened(page, folder, "two")
    other, spoken = page.locator("schedule-player").nth(1), player.locator("[aria-live=polite]")
    player.locator(".sp-views").focus()
    for key, step in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", 6),
        ("Home", 0),
        ("ArrowLeft", 0),
    ):
        page.keyboard.press(key)
        expect(player).to_have_attribute("data-step", str(step))
    player.get_by_role("button", name="One step forward").click()
    expect(player).to_have_attribute("data-step", "1")
    player.get_by_role("slider", name="Steps played").fill("3")
    expect(spoken).to_contain_text(
        "Step 2: 4 messages. Rank 3 sends chunk 0 to rank 0, added; rank 0 sends"
    )
    assert [text(player, each) for each in ("step", "messages", "bytes")] == [
        "3 of 6",
        "12 of 24",
        "768 KiB = 0.75 n",
    ]

    player.get_by_label("Algorithm").select_option("two_tree")
    player.get_by_label("Number of ranks").select_option("7")
    player.get_by_role("slider").fill("4")
    player.get_by_role("link", name="Link to this step").click()
    told, link = text(player, "text"), "#" + page.url.partition("#")[2]
    assert link == "#one--two_tree--7--4"
    again = opened(page, folder, "two", link)
    assert (text(again, "text"), again.get_attribute("data-step")) == (told, "4")
    assert other.get_by_label("Algorithm").input_value() == "tree"
    page.evaluate("location.hash = 'two--ring--3--2'")
    expect(other).to_have_attribute("data-step", "2")
    assert again.get_attribute("data-step") == "4"


def test_every_control_has_a_name_and_shows_its_focus(page: Page, folder: Path) -> None:
    shown = opened(page, folder, "all_reduce")
    controls = shown.locator("button, select, input, a, [tabindex='0']")
    snapshot = shown.aria_snapshot()
    assert not re.search(r"- (button|combobox|slider|link|img)(:|$)", snapshot, re.MULTILINE), (
        snapshot
    )
    page.keyboard.press("Tab")
    for _ in range(controls.count()):
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Tab")


@pytest.mark.parametrize("moves", [True, False])
def test_packets_move_while_it_plays_unless_the_reader_wants_no_motion(
    page: Page, folder: Path, moves: bool
) -> None:
    page.emulate_media(reduced_motion="no-preference" if moves else "reduce")
    player = opened(page, folder, "all_reduce", "#one--ring--4--0")
    player.get_by_label("Speed").select_option("4")
    player.locator(".sp-views").focus()
    page.keyboard.press(" ")
    seen = set()
    while player.get_attribute("data-complete") == "false":
        seen |= set(
            player.locator(".sp-stage [transform^=translate]").evaluate_all(
                "all => all.map(x => x.outerHTML)"
            )
        )
    assert (len(seen) > 24) == moves, (
        "four messages in each of six steps, each drawn in one place or in several"
    )
    expect(player.get_by_role("button", name="Play")).to_be_visible()


def test_without_its_data_the_text_stays(browser: Browser, tmp_path: Path) -> None:
    copy(tmp_path)
    write(tmp_path / "page.html", player("reduce", "flat", 3))
    with browser.new_context() as context, context.new_page() as page:
        page.goto((tmp_path / "page.html").as_uri())
        expect(page.get_by_text("There are no schedules for reduce.")).to_be_visible()
        assert page.locator("pre").inner_text().startswith("step |")


def test_a_race_plays_once_by_itself_and_can_be_paused(page: Page, folder: Path) -> None:
    page.emulate_media(reduced_motion="no-preference")
    field = opened(page, folder, "race")
    expect(field).to_have_attribute("data-playing", "true")
    field.get_by_role("button", name="Pause").click()
    expect(field).to_have_attribute("data-playing", "false")
    time = field.get_attribute("data-time")
    assert not page.wait_for_timeout(200)
    assert field.get_attribute("data-time") == time
    field.get_by_role("button", name="To the end").click()
    expect(field).to_have_attribute("data-steps", "30 16")


def test_without_motion_a_race_goes_by_steps(page: Page, folder: Path) -> None:
    field = opened(page, folder, "race")
    seen = []
    while (steps := field.get_attribute("data-steps")) != "30 16":
        seen.append(steps)
        field.get_by_role("button", name="Play").click()
        assert field.get_attribute("data-playing") == "false"
    assert seen[0] == "0 0"
    assert len(set(seen)) == len(seen)


def judged(monkeypatch: pytest.MonkeyPatch, case: Case) -> list[Any] | None:
    """What Python says: nothing, a message with the cell that `verify` marks, or an error of `parse_grid`."""
    module, marks = importlib.import_module("collectives.core.verify"), []
    told = module._error
    monkeypatch.setattr(
        module,
        "_error",
        lambda schedule, what, mark: marks.append(mark) or told(schedule, what, mark),
    )
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
    new = [
        text[:at] + text[at + 1 :],
        text[:at] + letter + text[at + 1 :],
        text[:at] + letter + text[at:],
    ]
    return chance.choice(new), *rest


def changed(case: Case, chance: random.Random) -> Case:
    """One cell's message gone, added instead of replaced, or of another chunk or rank."""
    text, collective, p, root = case
    found = chance.choice(list(re.finditer(r"([+=])(\d+)([-\d]*)<(\d+)", text)))
    sign, chunk, more, src = found.groups()
    other = chance.choice(["", f"{'+='[sign == '+']}{chunk}{more}<{src}", f"{sign}{chance.randrange(p)}<{src}",
                           f"{sign}{chunk}{more}<{chance.randrange(p)}"])  # fmt: skip
    return text[: found.start()] + other + text[found.end() :], collective, p, root


def test_the_playground_judges_as_python_does(
    page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(page, folder, "playground")
    cases, chance = list(right()), random.Random(17)
    wrong = [edit(chance.choice(cases), chance) for edit in (mistyped, changed) for _ in range(200)]
    found = page.evaluate(JUDGE, cases + wrong)
    assert found[: len(cases)] == [None] * len(cases)
    expected = [judged(monkeypatch, case) for case in wrong]
    for case, here, there in zip(wrong, found[len(cases) :], expected, strict=True):
        assert here == there, case[0]
    proved = [one for one in expected if one and len(one) > 1]
    assert min(len(proved), sum(one is not None and len(one) == 1 for one in expected)) > 50


def test_the_playground_names_a_mistake_as_one_types(page: Page, folder: Path) -> None:
    ground = opened(page, folder, "playground")
    text = ground.get_by_label("Schedule: a line")
    good = text.input_value()
    text.fill(good.replace("+2<3", "+2<9", 1))
    expect(ground.get_by_role("status")).to_contain_text(
        "line 2, column 11: got '9', expected another rank, 0 to 3"
    )
    ground.get_by_role("button", name="Go to this place").click()
    assert (
        page.evaluate(
            "(t => t.value.slice(t.selectionStart, t.selectionEnd))(document.activeElement)"
        )
        == "9"
    )
    text.fill(good.replace("+2<3", "+1<3", 1))
    expect(ground).to_have_attribute("data-state", "wrong")
    expect(ground.locator("mark")).to_contain_text("<--")
    text.fill(good)
    expect(ground.locator("schedule-player")).to_have_attribute("data-steps", "6")
    for group, state in (("Right", "right"), ("Broken", "wrong")):
        offered = ground.locator(f".pg-example optgroup[label={group}] option")
        for value in offered.evaluate_all("all => all.map(x => x.value)"):
            ground.locator(".pg-example").select_option(value)
            expect(ground).to_have_attribute("data-state", state)


def test_a_link_to_the_playground_carries_text_and_places(page: Page, folder: Path) -> None:
    ground = opened(page, folder, "playground", "#reduce--flat--3")
    text = ground.get_by_label("Schedule: a line")
    text.fill(text.input_value().replace("<1,2", "<1"))
    expect(ground).to_have_attribute("data-state", "wrong")
    told = ground.get_by_role("status").inner_text()
    again = opened(page, folder, "playground", "#" + page.url.partition("#")[2])
    assert again.get_by_role("status").inner_text() == told
    assert (
        'collective="reduce", p=3, root=0' in again.get_by_label("The same in Python").input_value()
    )

    ground = opened(page, folder, "playground", "#c=all_gather&p=3&a=ring&xy=0,5 100,20 40,90")
    ground.locator(".pg-example").select_option("bruck")
    assert "xy=0%2C5+100%2C20+40%2C90" in page.url
    places = (
        "all => all.map(node => [node.getAttribute('cx'), node.getAttribute('cy')].map(Number))"
    )
    assert ground.locator("circle.sp-rank").evaluate_all(places) == [[0, 5], [100, 20], [40, 90]]


def slide(shown: Locator, name: str, to: Any) -> None:
    """Move a slider of the explorer to one of the values that it offers."""
    offered = explorer_data(explorer())[name]
    shown.locator(f"input[data-of={name}]").fill(str(offered.index(to)))


def explored() -> Iterator[Explorer]:
    """Each number of ranks with each number of ranks per node, all else by chance."""
    chance = random.Random(34)
    for p in OFFERED["p"]:
        for g in OFFERED["ranks_per_node"]:
            n, alpha, rate = (chance.choice(OFFERED[name]) for name in ("n", "alpha", "rate"))
            yield Explorer(p, n, alpha, rate, chance.choice([None, *OFFERED["adding"]]), g)


def test_the_explorer_computes_what_python_computes(page: Page, folder: Path) -> None:
    opened(page, folder, "explorer")
    asked = list(explored())
    found = page.evaluate(COMPUTED, [explorer_data(explorer()), [asdict(each) for each in asked]])
    assert any("hierarchical_ring" in times for times, _ in found)
    for case, (times, bound) in zip(asked, found, strict=True):
        assert times == pytest.approx(case.seconds(), rel=1e-9, abs=0), case
        gamma = 1 / case.adding if case.adding else 0.0
        least = lower_bound("all_reduce", case.p, case.n, case.alpha, 1 / case.rate, gamma)
        assert bound == pytest.approx(least, rel=1e-9, abs=0), case


def test_sliders_of_the_explorer_change_the_winner(page: Page, folder: Path) -> None:
    shown = opened(page, folder, "explorer")
    for name, to, at in (
        ("n", 8, {}),
        ("p", 63, {"p": 63}),
        ("n", 1 << 34, {"p": 63, "n": 1 << 34}),
    ):
        slide(shown, name, to)
        times = explorer(**({"n": 8} | at)).seconds()
        times.pop("in_network")  # hidden until a preset with such a switch is chosen
        winner = min(times, key=lambda each: times[each])
        expect(shown.get_by_role("status")).to_contain_text(winner.replace("_", " "))
    ranks = shown.get_by_label("Ranks, p")
    ranks.press("ArrowRight")
    expect(ranks).to_have_attribute("aria-valuetext", "64")


def test_a_preset_of_the_explorer_moves_the_sliders_and_shows_what_a_switch_adds(
    page: Page, folder: Path
) -> None:
    shown = opened(page, folder, "explorer")
    slide(shown, "n", 1 << 34)
    for preset in PRESETS:
        shown.get_by_role("button", name=preset.said, exact=True).click()
        told = shown.get_by_label("Ranks, p").get_attribute("aria-valuetext")
        assert told == str(preset.p)
        status = expect(shown.get_by_role("status"))
        if preset.adds:
            status.to_contain_text("in network is the fastest")
        else:
            status.not_to_contain_text("in network")


def test_a_label_of_the_explorer_hides_its_curve_and_shows_it_again(
    page: Page, folder: Path
) -> None:
    shown = opened(page, folder, "explorer")
    curves = shown.locator(".ce-curve:not(.ce-leader)")
    count = curves.count()
    label = shown.get_by_role("button", name="swing", exact=True)
    for key, pressed in (("Enter", "false"), (" ", "true")):
        label.press(key)
        expect(label).to_be_focused()
        expect(label).to_have_attribute("aria-pressed", pressed)
        expect(curves).to_have_count(count - (pressed == "false"))
    shown.locator(".ce-labels button").evaluate_all("all => all.forEach(it => it.click())")
    expect(shown.get_by_role("status")).to_contain_text("no algorithm is shown")
