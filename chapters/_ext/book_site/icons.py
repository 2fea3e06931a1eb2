"""Font Awesome's icons that the site shows: the theme brings 2,000 of them, in a script of 1.4 MB and a style sheet."""

import re
from pathlib import Path
from typing import Any

SCRIPT = "_static/scripts/fontawesome.js"
# An icon in the script: name:[width, height, [other names], "code", "path"], maybe with a comma.
ICON = re.compile(
    r'(?:"([\w-]+)"|([\w$]+)):\[\d+,\d+,\[[^\[\]]*\],"[0-9a-f]+",(?:"[^"]*"|\[[^\[\]]*\])\],?'
)
STYLE = "_static/styles/pydata-sphinx-theme.css"
# An icon in the style sheet: .fa-name:before,.fa-other-name:before{content:"code"}
RULE = re.compile(r'(?:\.fa-[\w-]+:before,?)+\{content:"[^"]*"\}')
NAME = re.compile(r"\bfa-([a-z0-9-]+)")


def keep_used(app: Any, error: Exception | None) -> None:
    """Drop the icons that no page and no other script names."""
    site = Path(app.outdir)
    if error is None:
        names = used(site)
        for path, of in ((site / SCRIPT, subset), (site / STYLE, rules)):
            if path.exists():
                path.write_text(of(path.read_text(encoding="utf8"), names), encoding="utf8")


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


def rules(style: str, names: set[str]) -> str:
    """The style sheet with the rules of these icons only.

    >>> rules('a{b:c}.fa-x:before{content:"1"}.fa-up:before,.fa-arrow-up:before{content:"2"}', {"arrow-up"})
    'a{b:c}.fa-up:before,.fa-arrow-up:before{content:"2"}'
    """
    return RULE.sub(lambda rule: rule[0] if names & set(NAME.findall(rule[0])) else "", style)
