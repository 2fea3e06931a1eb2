"""Font Awesome's script with the icons that the site shows: the theme brings 2,000 of them, 1.4 MB, with every page."""

import re
from pathlib import Path
from typing import Any

SCRIPT = "_static/scripts/fontawesome.js"
# An icon in the script: name:[width, height, [other names], "code", "path"], maybe with a comma.
ICON = re.compile(r'(?:"([\w-]+)"|([\w$]+)):\[\d+,\d+,\[[^\[\]]*\],"[0-9a-f]+",(?:"[^"]*"|\[[^\[\]]*\])\],?')
NAME = re.compile(r"\bfa-([a-z0-9-]+)")


def keep_used(app: Any, error: Exception | None) -> None:
    """Drop the icons that no page and no other script names."""
    script = Path(app.outdir) / SCRIPT
    if error is None and script.exists():
        script.write_text(subset(script.read_text(encoding="utf8"), used(Path(app.outdir))), encoding="utf8")


def used(site: Path) -> set[str]:
    """The names of icons in the site's pages, and in its scripts but Font Awesome's own."""
    files = [*site.rglob("*.html"), *(path for path in site.rglob("*.js") if path != site / SCRIPT)]
    return {name for path in files for name in NAME.findall(path.read_text(encoding="utf8"))}


def subset(script: str, names: set[str]) -> str:
    """The script with the icons of these names only.

    >>> subset('c={x:[8,8,[],"f00d","M1"],"arrow-up":[8,8,["up"],"f062","M2"]};', {"arrow-up"})
    'c={"arrow-up":[8,8,["up"],"f062","M2"]};'
    """
    return ICON.sub(lambda icon: icon[0] if (icon[1] or icon[2]) in names else "", script)
