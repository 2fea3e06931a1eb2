"""Live cells, exercises and the playground's Python in Chromium, with the answers of the build's kernel."""

import json
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import Locator, Page, expect
from test_site import SITE, needs_site

from browsers import TELEPHONE, needs_browser
from collectives.algorithms import executable
from places import PATIENCE, ROOT

PYTHON = SITE / "_static" / "python"
PAGES = sorted(
    str(path.relative_to(PYTHON / "cells").with_suffix(""))
    for path in PYTHON.glob("cells/**/*.json")
)
RING = "chapters/ring-all-reduce"
needs_python = pytest.mark.skipif(
    not PAGES, reason="no Python for browsers in the site: `make book` says why"
)
pytestmark = [pytest.mark.extended, needs_site, needs_browser, needs_python]

PROVE_ALL = """
from collectives import verify
from collectives.algorithms import build, executable

proved = 0
for collective, algorithm in executable():
    for p in range(1, 9):
        verify(build(collective, algorithm, p))
        proved += 1
print(proved)
"""
OVERFLOW = "document.documentElement.scrollWidth"


def opened(page: Page, document: str, number: int) -> Locator:
    """A page's cell, after its button was pressed and its code has run."""
    cell = page.locator(f"#cell-{number}")
    cell.evaluate(
        "it => { const hidden = it.querySelector('details'); if (hidden) hidden.open = true; }"
    )
    cell.get_by_role("button", name="Edit and run").click()
    return ended(cell)


def number_of(document: str, text: str) -> int:
    """Return the number of the first of a page's cells that has this text."""
    cells = json.loads((PYTHON / "cells" / f"{document}.json").read_text("utf8"))
    return next(int(number) for number, cell in cells.items() if text in cell["source"])


def ended(cell: Locator, state: str = "done") -> Locator:
    expect(cell).to_have_attribute("data-state", state, timeout=PATIENCE * 1000)
    return cell


def run(cell: Locator, code: str, state: str = "done") -> Locator:
    cell.get_by_label("Code of this cell").fill(code)
    cell.get_by_role("button", name="Run", exact=True).click()
    return ended(cell, state)


def words(text: str) -> str:
    return " ".join(text.split())


def said(output: Any) -> str:
    """Return the text of an output, of a table its cells, because pandas leaves columns out of a wide one's text."""
    data = output.get("data", {})
    cells = BeautifulSoup(data.get("text/html", ""), "html.parser").select("table :is(th, td)")
    if cells:
        return " ".join(cell.get_text() for cell in cells)
    return str(output.get("text") or data.get("text/plain", ""))


def expected_of(document: str) -> dict[int, str]:
    """Return the text that the build's kernel printed in each cell."""
    path = ROOT / "_build/jupyter_execute" / f"{document}.ipynb"
    cells = enumerate(nbformat.read(path, as_version=4).cells)
    return {number: printed(cell.outputs) for number, cell in cells if cell.cell_type == "code"}


def printed(outputs: list[Any]) -> str:
    """Return the text of a cell's outputs; the build puts all that is printed into the first, and keeps the others."""
    texts: list[str] = []
    for output in outputs:
        text = words(said(output))
        if output.output_type != "stream" or text not in " ".join(texts):
            texts.append(text)
    return words(" ".join(texts))


TOLD = """
it => [...it.querySelectorAll(".live-output > .live-text, .live-output > .live-html")]
    .map(node => [node, [...node.querySelectorAll("table :is(th, td)")]])
    .map(([node, cells]) => cells.length ? cells.map(cell => cell.textContent).join(" ")
        : node.dataset.text ?? node.textContent)
    .join(" ")
"""


@pytest.mark.parametrize("document", PAGES)
def test_every_live_cell_says_what_the_build_s_kernel_said(
    page: Page, complaints: list[str], document: str
) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{document}.html")
    expected = expected_of(document)
    numbers = page.locator(".live-cell").evaluate_all(
        "all => all.map(it => Number(it.id.slice(5)))"
    )
    assert numbers
    for number in numbers:
        cell = opened(page, document, number)
        assert words(cell.evaluate(TOLD)) == expected[number], number
    assert not complaints


def test_a_page_that_is_read_asks_for_nothing(page: Page, complaints: list[str]) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{RING}.html")
    page.wait_for_load_state("networkidle")
    assert not [url for url in asked if "_static/python" in url or "live-worker" in url]
    assert not complaints


def test_all_algorithms_are_proved_for_one_to_eight_ranks(
    page: Page, complaints: list[str]
) -> None:
    page.goto("chapters/preface.html")
    cell = opened(page, "chapters/preface", 7)
    run(cell, PROVE_ALL)
    expect(cell.locator(".live-output")).to_have_text(f"{8 * len(executable())}")
    assert not complaints


def test_a_reader_breaks_a_ring_sees_where_repairs_it_and_plays_it(page: Page) -> None:
    page.goto(f"{RING}.html")
    cell = opened(page, RING, number_of(RING, "print(grid(ring))"))
    editor = cell.get_by_label("Code of this cell")
    right = editor.input_value()
    broken = "from dataclasses import replace\nverify(replace(ring, nsteps=5, repeats=()))"
    run(cell, broken, "error")
    expect(cell.locator(".live-error mark").first).to_contain_text("line 2")
    expect(cell.get_by_role("status").first).to_contain_text(
        "rank 0 holds chunk 1 of rank 1 0 times"
    )
    expect(cell.locator("schedule-player")).to_have_attribute("data-complete", "false")
    cell.get_by_role("button", name="Go to line 2").click()
    chosen = "(t => t.value.slice(t.selectionStart, t.selectionEnd))(document.activeElement)"
    assert page.evaluate(chosen).startswith("verify(replace(")
    editor.fill(right)
    editor.press("Control+Enter")
    ended(cell)
    expect(cell.locator("schedule-player")).to_have_attribute("data-steps", "6")
    cell.get_by_role("button", name="Reset").click()
    expect(cell.get_by_role("button", name="Edit and run")).to_be_visible()
    expect(cell.locator("pre").first).to_contain_text("print(grid(ring))")


def test_an_endless_loop_is_stopped_and_the_next_run_starts_again(page: Page) -> None:
    page.goto("chapters/preface.html")
    cell = opened(page, "chapters/preface", 7)
    cell.get_by_label("Code of this cell").fill("while True:\n    print('again')")
    cell.get_by_role("button", name="Run", exact=True).click()
    expect(cell.locator(".live-output")).to_contain_text("again", timeout=PATIENCE * 1000)
    cell.get_by_role("button", name="Stop").click()
    expect(cell.get_by_role("status")).to_contain_text("Stopped")
    run(cell, "1 + 1")
    expect(cell.locator(".live-output")).to_have_text("2")


# A browser defines it on a prototype.
FIRST_FETCH = """
import js
js.WorkerGlobalScope.prototype.fetch.call(js.self, "https://example.org/x")
"""


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("def f(:", "error"),
        ("raise SystemExit", "error"),
        ("import torch", "error"),
        ("from js import fetch\nfetch('https://example.org/x')", "done"),
        ("import js\njs.importScripts('https://example.org/x.js')", "error"),
        ("import js\njs.eval('fetch(1)')", "error"),
        (FIRST_FETCH, "error"),
        ("class Shown:\n    def _repr_html_(self):\n        return '<img src=x onerror=\"document.title=1\">"
         "<script>document.title=1</script><meta http-equiv=refresh content=\"0;url=x.html\">'\nShown()", "done"),
    ],
)  # fmt: skip
def test_what_a_reader_runs_reaches_no_other_host_and_not_the_page(
    page: Page, complaints: list[str], code: str, state: str
) -> None:
    page.goto("chapters/preface.html")
    title = page.title()
    cell = opened(page, "chapters/preface", 7)
    run(cell, code, state)
    page.wait_for_timeout(500)
    assert page.title() == title
    assert not [it for it in complaints if it.startswith("asks")]


RIGHT = {
    "ring-all-reduce-1": ["112", "14"],
    "broadcast-1": ["2", "3"],
    "tree-all-reduce-3": "def steps(p, s):\n    return 2 * (p + s - 2)\n",
    "scatter-gather-all-gather-4": "from collectives import ALGORITHMS\n"
    "from collectives.core.schedule import reverse\n\n\ndef mine(p):\n"
    '    return reverse(ALGORITHMS["all_gather", "bruck"](p), "reduce_scatter", add=True)\n',
}


@pytest.mark.parametrize("exercise", RIGHT)
def test_an_exercise_answers(page: Page, complaints: list[str], exercise: str) -> None:
    page.goto(f"chapters/{exercise.rpartition('-')[0]}.html")
    place, answer = page.locator(f"check-answer[exercise={exercise}]"), RIGHT[exercise]
    if isinstance(answer, list):
        place.get_by_role("textbox").first.fill("5")
        for box in place.get_by_role("textbox").all()[1:]:
            box.fill("5")
    place.get_by_role("button", name="Check").click()
    ended(place, "wrong")
    if isinstance(answer, list):
        for box, value in zip(place.get_by_role("textbox").all(), answer, strict=True):
            box.fill(value)
    else:
        place.get_by_role("textbox").fill(answer)
    place.get_by_role("button", name="Check").click()
    ended(place, "right")
    assert not complaints


@pytest.mark.parametrize("name", ["ring", "trees"])
def test_an_assignment_is_graded_in_its_handout(
    page: Page, complaints: list[str], name: str
) -> None:
    page.goto(f"assignments/{name}/handout.html")
    place = page.locator("check-answer")
    place.get_by_role("button", name="Check").click()
    ended(place, "wrong")
    expect(place.locator(".live-verdict")).to_have_text("0 of 100 points.")
    expect(place.locator("tr").first).to_contain_text("not written yet")
    reference = ROOT / "assignments" / name / "reference" / f"{name}.py"
    place.get_by_label("Your answer").fill(reference.read_text(encoding="utf8"))
    place.get_by_role("button", name="Check").click()
    ended(place, "right")
    expect(place.locator(".live-verdict")).to_have_text("100 of 100 points.")
    assert not complaints


def test_the_playground_proves_python_and_its_link_runs_nothing(
    page: Page, complaints: list[str]
) -> None:
    page.goto("chapters/playground.html")
    ground = page.locator("python-playground")
    ground.get_by_role("button", name="Prove").click()
    ended(ground, "right")
    expect(ground.locator("caption")).to_contain_text("16 ranks: 30 steps")
    assert ground.locator("tr").count() == 10
    code = ground.get_by_role("textbox")
    code.fill(code.input_value().replace("range(1, p)]", "range(1, min(p, 3))]", 1))
    ground.get_by_role("button", name="Prove").click()
    ended(ground, "wrong")
    expect(ground.locator(".live-verdict")).to_contain_text("p = 4: all_reduce on 4 ranks")
    expect(ground.locator("schedule-player")).to_have_attribute("data-complete", "false")
    ranks = ground.locator(".live-choice select").last
    ranks.select_option("3")
    ground.get_by_role("button", name="Prove").click()
    ended(ground, "right")
    expect(ground.locator(".live-verdict")).to_have_text("Proved for p = 3.")
    link = ground.evaluate("it => it.link")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("about:blank")
    page.goto(link)
    expect(ground.get_by_role("textbox")).to_have_value(code.input_value())
    expect(ranks).to_have_value("3")
    page.wait_for_load_state("networkidle")
    assert not [url for url in asked if "_static/python" in url]
    assert not complaints


def test_a_telephone_shows_a_live_cell_and_an_exercise_whole(page: Page) -> None:
    page.set_viewport_size(TELEPHONE)
    page.goto(f"{RING}.html")
    opened(page, RING, number_of(RING, "np.float32"))
    assert page.evaluate(OVERFLOW) <= TELEPHONE["width"]
