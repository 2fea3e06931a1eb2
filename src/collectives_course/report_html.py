"""A grade as one page that loads nothing: every criterion with its message, the marked grid, and the schedule to play.

The page is built as elements, so all text is escaped. Its policy allows only the scripts whose digests it names.
"""

import json
import re
from base64 import b64encode
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, tostring

from collectives.contracts import CONTRACTS
from collectives_course.verdict import NO_SANDBOX, Grade, Verdict, out_of, passed, shown, signed

STATIC = Path(__file__).parents[2] / "chapters" / "_static"  # in a checkout; a wheel has no player
SCRIPTS = (  # in this order, as on the book's pages
    "player-schedule.js",
    "player-words.js",
    "player-stage.js",
    "player-cells.js",
    "player-controls.js",
    "player.js",
)
STYLE = "player.css"
THEME = """
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => { document.documentElement.dataset.theme = dark.matches ? "dark" : "light"; };
dark.addEventListener("change", follow);
follow();
"""

Schedules = dict[str, dict[str, dict[str, Any]]]  # collective, name, p: what the player's script expects


def html(grade: Grade) -> str:
    """The grade as the text of an HTML file; schedules are playable if the repository's player is there."""
    grade = shown(grade)
    schedules = _schedules(grade) if all((STATIC / name).exists() for name in (*SCRIPTS, STYLE)) else {}
    scripts, styles = _player(schedules) if schedules else ([], [])
    page = _element(
        "html",
        _head(f"{grade.submission}: {grade.title}", scripts, [*styles, _style()]),
        _element("body", _main(grade, schedules), *(_element("script", script) for script in scripts)),
        lang="en",
    )
    return "<!doctype html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _element(tag: str, *children: Element | str, **attributes: str) -> Element:
    """An element; ``class_`` and ``http_equiv`` are written as HTML writes them."""
    element = Element(tag, {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + child
        else:
            element.text = (element.text or "") + child
    return element


def _head(title: str, scripts: list[str], styles: list[str]) -> Element:
    return _element(
        "head",
        _element("meta", charset="utf-8"),
        _element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        _element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _element("title", title),
        *(_element("style", style) for style in styles),
    )


def _policy(scripts: list[str]) -> str:
    digests = [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts]
    allowed = " ".join(digests) or "'none'"
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"


def _style() -> str:
    return (resources.files("collectives_course") / "report.css").read_text(encoding="utf8")


def _main(grade: Grade, schedules: Schedules) -> Element:
    criteria = [_criterion(place, verdict, schedules) for place, verdict in enumerate(grade.verdicts, 1)]
    return _element(
        "main",
        _header(grade),
        _element("ol", *criteria),
        _element("footer", f"Assignment {grade.assignment}."),
    )


def _header(grade: Grade) -> Element:
    notes = list(grade.notes)
    if not grade.sandboxed:
        notes.insert(0, f"{NO_SANDBOX.capitalize()}.")
    score = _element("strong", out_of(grade))
    return _element(
        "header",
        _element("h1", grade.title),
        _element("p", "Submission ", _element("b", grade.submission)),
        _element("p", score, f", {passed(grade)}", class_="score"),
        *(_element("p", note, class_="note") for note in notes),
    )


def _criterion(place: int, verdict: Verdict, schedules: Schedules) -> Element:
    status = _element("span", signed(verdict), class_="status")
    points = _element("span", out_of(verdict), class_="points")
    parts = [_element("h2", f"{place}. {verdict.text}"), _element("p", status, points, class_="result")]
    if verdict.message:
        parts.append(_element("p", verdict.message, class_="message"))
    if grid := verdict.details.get("grid"):
        label = "Table" if verdict.status == "passed" else "Schedule, fault marked"
        parts.append(_element("pre", str(grid), tabindex="0", role="region", aria_label=label))
    parts += _element_of_player(_name(place, verdict), schedules)
    return _element("li", *parts, id=f"criterion-{place}", class_=verdict.status)


def _name(place: int, verdict: Verdict) -> str:
    """The criterion as the player's list of schedules names it: unique, and safe in any attribute.

    >>> _name(3, Verdict("two-tree <b>", "", "passed", 1, 1))
    '3_two_tree_b'
    """
    return f"{place}_{re.sub('[^a-z0-9]+', '_', verdict.criterion.lower()).strip('_')}"


def _schedules(grade: Grade) -> Schedules:
    found: Schedules = {}
    for place, verdict in enumerate(grade.verdicts, 1):
        data = verdict.details.get("player")
        if isinstance(data, dict) and data.get("collective") in CONTRACTS and isinstance(data.get("p"), int):
            name = _name(place, verdict)
            found.setdefault(data["collective"], {})[name] = {str(data["p"]): data | {"algorithm": name}}
    return found


def _element_of_player(name: str, schedules: Schedules) -> list[Element]:
    return [
        _element(
            "schedule-player",
            _element("p", "This browser runs no scripts, which playing the schedule needs."),
            id=f"player-{name}",
            collective=collective,
            algorithm=name,
            p=p,
        )
        for collective, algorithms in schedules.items()
        for p in algorithms.get(name, ())
    ]


def _player(schedules: Schedules) -> tuple[list[str], list[str]]:
    """The scripts and styles that play the schedules."""
    # "<" could end the script, or open a comment in it.
    data = json.dumps(schedules, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    *scripts, style = ((STATIC / name).read_text(encoding="utf8") for name in (*SCRIPTS, STYLE))
    return [THEME, f"window.schedules = {data};", "\n".join(scripts)], [style]
