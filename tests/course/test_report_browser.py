"""A grade's page in Chromium, opened from disk: nothing of it runs or loads but the player, and it fits a telephone."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from test_report import GRADE, hostile

from browsers import TELEPHONE, needs_browser
from collectives_course.report import write
from collectives_course.verdict import Grade

CLICKED = "document.querySelector('schedule-player [data-do=end]').click()"

pytestmark = [
    pytest.mark.extended,
    needs_browser,
]


def opened(browser: Browser, grade: Grade, folder: Path, **options: object) -> tuple[Page, list[str]]:
    """The page, and what it asked for, said or complained about."""
    write(grade, folder)
    page, events = browser.new_page(**options), []  # type: ignore[arg-type, var-annotated]
    page.on("request", lambda request: events.append(request.url))
    page.on("dialog", lambda dialog: (events.append(dialog.message), dialog.dismiss()))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("console", lambda message: events.append(message.text))
    page.goto((folder / "grade.html").as_uri())
    return page, events


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_schedule_plays_and_the_page_fits(browser: Browser, tmp_path: Path, scheme: str) -> None:
    page, events = opened(browser, GRADE, tmp_path, viewport=TELEPHONE, color_scheme=scheme)
    page.wait_for_selector("schedule-player[data-ready=true]")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.evaluate(CLICKED)
    assert page.evaluate("document.querySelector('schedule-player').dataset.complete") == "true"
    assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
    assert events == [(tmp_path / "grade.html").as_uri()]
    page.close()


def test_on_paper_there_are_no_buttons(browser: Browser, tmp_path: Path) -> None:
    page, _ = opened(browser, GRADE, tmp_path, color_scheme="dark")
    page.emulate_media(media="print")
    assert not page.is_visible("schedule-player")
    assert page.is_visible("pre")
    page.close()


def test_what_a_submission_wrote_never_runs(browser: Browser, tmp_path: Path) -> None:
    page, events = opened(browser, hostile(), tmp_path)
    page.wait_for_timeout(300)
    assert events[:1] == [(tmp_path / "grade.html").as_uri()]
    assert not [event for event in events[1:] if event in ("1", "2") or "://" in event]
    assert page.evaluate("document.querySelectorAll('script').length") == 3
    page.close()


def test_an_injected_handler_is_forbidden_by_the_policy(browser: Browser, tmp_path: Path) -> None:
    page, events = opened(browser, GRADE, tmp_path)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=alert(3)>')")
    page.wait_for_timeout(300)
    assert "3" not in events
    assert any("Content Security Policy" in event for event in events)
    page.close()
