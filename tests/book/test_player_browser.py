"""The schedule player in Chromium, in pages opened from disk: no server, no network."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, Locator, Page, expect

from browsers import TELEPHONE, needs_browser
from collectives.algorithms import ALGORITHMS
from collectives.contracts import CONTRACTS
from collectives.figures.player import player, write_scripts
from collectives_book.race import race
from formats.programs import all_pairs
from places import ROOT

STATIC = ROOT / "chapters" / "_static"
SETTINGS = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["sphinx"]["config"]
SCRIPTS = [name for name, _ in SETTINGS["html_js_files"]]
STYLES = [name for name in SETTINGS["html_css_files"] if name.startswith("play")]
WIDEST = "Math.max(...[...document.querySelectorAll('body *')].map(node => node.getBoundingClientRect().right))"
# Chooses every algorithm in the lists, steps through it by key, and says where the end is not what was asked.
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

pytestmark = [
    pytest.mark.extended,
    needs_browser,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the player's files and a page for each collective, and one with two players."""
    folder = tmp_path_factory.mktemp("site")
    copy_player(folder)
    write_scripts(folder / "schedules")
    for collective in CONTRACTS:
        first = next(name for of, name in ALGORITHMS if of == collective)
        write(folder / f"{collective}.html", player(collective, first, 4)._repr_html_())
    ring, tree = player("all_reduce", "ring", 4, name="one"), player("all_reduce", "tree", 5, name="two", step=3)
    write(folder / "page.html", ring._repr_html_() + tree._repr_html_())
    field = race("all_reduce", ["ring", "two_tree"], 16, on="ethernet", nbytes=8, name="race", autoplay=True)
    write(folder / "race.html", field._repr_html_())
    (folder / "two_blocks.xml").write_text(all_pairs(3), encoding="utf8")
    write(folder / "own.html", player("all_reduce", f"{folder}/two_blocks.xml", 3, bytes=3072)._repr_html_())
    return folder


def copy_player(folder: Path) -> None:
    for name in (*SCRIPTS, *STYLES):
        shutil.copy(STATIC / name, folder)


def write(path: Path, body: str) -> None:
    styles = "".join(f'<link rel="stylesheet" href="{name}">' for name in STYLES)
    scripts = "".join(f'<script defer src="{name}?v=1"></script>' for name in SCRIPTS)
    path.write_text(
        '<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8"><title>Players</title>'
        '<meta name="viewport" content="width=device-width">'
        f"{styles}{scripts}</head><body>{body}</body></html>",
        encoding="utf8",
    )


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in which nothing may go wrong."""
    complaints: list[str] = []
    with browser.new_context() as context, context.new_page() as page:
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: line.type in ("error", "warning") and complaints.append(line.text))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        yield page
        assert not complaints


def opened(page: Page, folder: Path, name: str = "page", link: str = "") -> Locator:
    """The first player of a page, ready."""
    page.goto((folder / f"{name}.html").as_uri() + link)
    for one in page.locator("schedule-player").all():
        expect(one).to_have_attribute("data-ready", "true")
    return page.locator("schedule-player").first


def text(player: Locator, name: str) -> str:
    return player.locator(f".sp-{name}").inner_text()


@pytest.mark.parametrize("collective", CONTRACTS)
def test_every_algorithm_plays_to_its_end(page: Page, folder: Path, collective: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, folder, collective)
    ranks = [2, 5, 8]
    played = page.evaluate(PLAY_ALL, ranks)
    expected = [name for of, name in ALGORITHMS if of == collective]
    assert played == [[name, p, True, "true", False, True] for name in expected for p in ranks]


def test_a_schedule_in_the_element_plays_to_its_end(page: Page, folder: Path) -> None:
    page.emulate_media(reduced_motion="reduce")
    player = opened(page, folder, "own")
    assert text(player, "collective") == "all-reduce"
    assert "two blocks.xml" in (player.get_attribute("aria-label") or "")
    player.locator(".sp-views").focus()
    for step, complete in ((1, "false"), (2, "true")):
        page.keyboard.press("ArrowRight")
        expect(player).to_have_attribute("data-step", str(step))
        expect(player).to_have_attribute("data-complete", complete)
    assert (text(player, "messages"), "4 KiB" in text(player, "bytes")) == ("12 of 12", True)
    expect(player.locator(".sp-edit")).to_be_hidden()


def test_keys_buttons_and_slider(page: Page, folder: Path) -> None:
    page.emulate_media(reduced_motion="reduce")
    player = opened(page, folder)
    views = player.locator(".sp-views")
    views.focus()
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
    slider = player.get_by_role("slider", name="Steps played")
    slider.fill("4")
    expect(player).to_have_attribute("data-step", "4")
    slider.press("ArrowRight")
    expect(player).to_have_attribute("data-step", "5")
    slider.press("Home")
    expect(player).to_have_attribute("data-step", "0")
    assert page.locator("schedule-player").nth(1).get_attribute("data-step") == "3"  # nobody touched it


def test_it_moves_packets_while_it_plays(page: Page, folder: Path) -> None:
    player = opened(page, folder)
    player.get_by_label("Speed").select_option("4")
    player.locator(".sp-views").focus()
    page.keyboard.press(" ")
    expect(player.get_by_role("button", name="Pause")).to_be_visible()
    packet = player.locator("[transform^=translate]").first
    places = {packet.get_attribute("transform") for _ in range(8) if not page.wait_for_timeout(15)}
    assert len(places) > 2
    expect(player).to_have_attribute("data-complete", "true", timeout=8_000)
    expect(player.get_by_role("button", name="Play")).to_be_visible()


def test_reduced_motion_means_no_motion(page: Page, folder: Path) -> None:
    page.emulate_media(reduced_motion="reduce")
    player = opened(page, folder)
    player.get_by_label("Speed").select_option("4")
    player.get_by_role("button", name="Play").click()
    seen = set()
    while player.get_attribute("data-complete") == "false":
        seen |= set(player.locator(".sp-stage [transform^=translate]").evaluate_all("all => all.map(x => x.outerHTML)"))
    # Four messages in each of six steps, each drawn in one place only.
    assert len(seen) <= 24


def test_a_step_is_told(page: Page, folder: Path) -> None:
    page.emulate_media(reduced_motion="reduce")
    player = opened(page, folder)
    spoken = player.locator("[aria-live=polite]")
    expect(spoken).to_have_text("Start: every rank holds a buffer of its own. 6 steps to go.")
    player.locator(".sp-slider").fill("3")
    expect(spoken).to_have_text(
        "Step 2: 4 messages. Rank 3 sends chunk 0 to rank 0, added; rank 0 sends chunk 1 to rank 1, added; "
        "rank 1 sends chunk 2 to rank 2, added; and 1 more."
    )
    assert (text(player, "step"), text(player, "messages")) == ("3 of 6", "12 of 24")
    assert text(player, "bytes") == "768 KiB = 0.75 n"
    each = "rank 0 768 KiB, rank 1 768 KiB, rank 2 768 KiB, rank 3 768 KiB"
    expect(player.locator(".sp-bars svg")).to_have_attribute("aria-label", f"Bytes sent so far: {each}.")
    player.locator(".sp-slider").fill("6")
    expect(spoken).to_contain_text("Complete: every rank holds the sum over all ranks.")


def test_a_link_carries_the_state(page: Page, folder: Path) -> None:
    page.emulate_media(reduced_motion="reduce")
    player = opened(page, folder)
    player.get_by_label("Algorithm").select_option("two_tree")
    player.get_by_label("Number of ranks").select_option("7")
    player.locator(".sp-slider").fill("4")
    player.get_by_role("link", name="Link to this step").click()
    link = "#" + page.url.partition("#")[2]
    assert link == "#one--two_tree--7--4"
    told = text(player, "text")
    page.goto("about:blank")
    again = opened(page, folder, link=link)
    assert (text(again, "text"), again.get_attribute("data-step")) == (told, "4")
    assert again.get_by_label("Algorithm").input_value() == "two_tree"
    other = page.locator("schedule-player").nth(1)
    assert other.get_by_label("Algorithm").input_value() == "tree"
    page.evaluate("location.hash = 'two--ring--3--2'")
    expect(other).to_have_attribute("data-step", "2")
    expect(other).to_have_attribute("aria-label", "Schedule player: all-reduce by ring on 3 ranks")
    assert again.get_attribute("data-step") == "4"


@pytest.mark.parametrize("link", ["#one--no-such--4--2", "#one--ring--99--900", "#a-heading", "#one--ring--4--x", "#%"])
def test_a_strange_link_does_no_harm(page: Page, folder: Path, link: str) -> None:
    assert opened(page, folder, link=link).get_attribute("data-steps")


def test_a_small_buffer_has_empty_messages_which_are_not_sent(page: Page, folder: Path) -> None:
    page.emulate_media(reduced_motion="reduce")
    write(folder / "small.html", player("all_reduce", "ring", 4, bytes=2, step=6)._repr_html_())
    shown = opened(page, folder, "small")
    assert text(shown, "messages") == "12 of 12"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_telephone(page: Page, folder: Path, theme: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.set_viewport_size(TELEPHONE)
    for collective, p in (("all_to_all", "16"), ("all_reduce", "16"), ("all_gather", "2")):
        shown = opened(page, folder, collective)
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        shown.get_by_label("Number of ranks").select_option(p)
        shown.locator(".sp-views").press("End")
        assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
        assert page.evaluate(WIDEST) <= TELEPHONE["width"]


def test_every_control_has_a_name_and_shows_its_focus(page: Page, folder: Path) -> None:
    shown = opened(page, folder)
    controls = shown.locator("button, select, input, a, [tabindex='0']")
    assert controls.count() == 12
    snapshot = shown.aria_snapshot()
    assert not re.search(r"- (button|combobox|slider|link|img)(:|$)", snapshot, re.MULTILINE), snapshot
    page.keyboard.press("Tab")
    for _ in range(controls.count()):
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Tab")


def test_without_javascript_the_schedule_is_there_as_text(browser: Browser, folder: Path) -> None:
    with browser.new_context(java_script_enabled=False) as context, context.new_page() as page:
        page.goto((folder / "page.html").as_uri())
        assert page.locator("schedule-player pre").first.inner_text().startswith("step | rank 0 | rank 1")


def test_without_its_data_the_text_stays(browser: Browser, tmp_path: Path) -> None:
    copy_player(tmp_path)
    write(tmp_path / "page.html", player("reduce", "flat", 3)._repr_html_())
    with browser.new_context() as context, context.new_page() as page:
        page.goto((tmp_path / "page.html").as_uri())
        expect(page.get_by_text("There are no schedules for reduce.")).to_be_visible()
        assert page.locator("pre").inner_text().startswith("step |")


def raced(page: Page, folder: Path) -> Locator:
    page.goto((folder / "race.html").as_uri())
    field = page.locator("schedule-race")
    expect(field).to_have_attribute("data-ready", "true")
    return field


def test_a_race_plays_once_by_itself_and_can_be_paused(page: Page, folder: Path) -> None:
    field = raced(page, folder)
    expect(field).to_have_attribute("data-playing", "true")
    field.get_by_role("button", name="Pause").click()
    expect(field).to_have_attribute("data-playing", "false")
    time = field.get_attribute("data-time")
    assert not page.wait_for_timeout(200)
    assert field.get_attribute("data-time") == time
    field.get_by_role("button", name="To the end").click()
    expect(field).to_have_attribute("data-steps", "30 16")
    expect(field.locator(".sp-verdict")).to_have_text("Ring takes 3.3 times as long as two trees.")


def test_without_motion_a_race_goes_by_steps(page: Page, folder: Path) -> None:
    page.emulate_media(reduced_motion="reduce")
    field = raced(page, folder)
    expect(field.locator(".sp-verdict")).to_have_text("At 0 µs: ring in step 0, two trees in step 0.")
    seen = []
    while field.get_attribute("data-steps") != "30 16":
        seen.append(field.get_attribute("data-steps"))
        field.get_by_role("button", name="Play").click()
        assert field.get_attribute("data-playing") == "false"
    assert seen[0] == "0 0"
    assert len(set(seen)) == len(seen)
    field.locator(".sp-slider").press("Home")
    expect(field).to_have_attribute("data-steps", "0 0")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_race_is_stacked_on_a_telephone(page: Page, folder: Path, theme: str) -> None:
    page.set_viewport_size(TELEPHONE)
    field = raced(page, folder)
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    first, second = (lane.bounding_box() for lane in field.locator(".sp-lane").all())
    assert first is not None
    assert second is not None
    assert second["y"] >= first["y"] + first["height"]
    assert page.evaluate(WIDEST) <= TELEPHONE["width"]
