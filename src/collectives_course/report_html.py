"""A grade as one page that loads nothing: every criterion with its message, the marked grid, and the schedule to play.

The template ``report.html`` escapes all text. The page's policy allows only the scripts whose digests it names.
"""

import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

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

PAGES = Environment(loader=PackageLoader("collectives_course", ""), autoescape=True, trim_blocks=True)

Schedules = dict[int, dict[str, Any]]  # by the criterion's place: what the player's script expects


def html(grade: Grade) -> str:
    """The grade as the text of an HTML file; schedules are playable if the repository's player is there."""
    grade = shown(grade)
    schedules = _schedules(grade) if all((STATIC / name).exists() for name in (*SCRIPTS, STYLE)) else {}
    scripts, styles = _player(schedules) if schedules else ([], [])
    return PAGES.get_template("report.html").render(
        grade=grade,
        notes=[*([] if grade.sandboxed else [f"{NO_SANDBOX.capitalize()}."]), *grade.notes],
        schedules=schedules,
        scripts=scripts,
        styles=[*styles, Path(__file__).with_name("report.css").read_text(encoding="utf8")],
        policy=_policy(scripts),
        **{each.__name__: each for each in (out_of, passed, signed)},
    )


def _policy(scripts: list[str]) -> str:
    digests = [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts]
    allowed = " ".join(digests) or "'none'"
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"


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
            found[place] = data | {"algorithm": _name(place, verdict)}
    return found


def _player(schedules: Schedules) -> tuple[list[str], list[str]]:
    """The scripts and styles that play the schedules."""
    known: dict[str, dict[str, Any]] = {}
    for each in schedules.values():
        known.setdefault(each["collective"], {})[each["algorithm"]] = {str(each["p"]): each}
    # "<" could end the script, or open a comment in it.
    data = json.dumps(known, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    *scripts, style = ((STATIC / name).read_text(encoding="utf8") for name in (*SCRIPTS, STYLE))
    return [THEME, f"window.schedules = {data};", "\n".join(scripts)], [style]
