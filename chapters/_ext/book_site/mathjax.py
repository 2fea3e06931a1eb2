"""MathJax on the site itself: the one component that the pages use, with its fonts, 1.5 MB of 24."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Of the package sphinx-mathjax-offline. For a formula that needs more,
# tests/book/test_site_browser.py names the file.
KEPT = ["tex-chtml.js", "output/chtml/fonts/woff-v2"]
# Fonts of letters that no formula here has.
LEFT_OUT = shutil.ignore_patterns("MathJax_Fraktur*", "MathJax_SansSerif*", "MathJax_Script*")
# The menu of a formula would load the parts that are not here.
OPTIONS = {"enableMenu": False}


def configure(_: Any, config: Any) -> None:
    """Have every page ask this site for MathJax.

    Under `_static` Sphinx would append `?v=` to an address of its own.
    """
    config.mathjax_path = "mathjax/tex-chtml.js"
    config.mathjax3_config = {
        "options": OPTIONS | (config.mathjax3_config or {}).get("options", {})
    }


def install(app: Any, failure: Exception | None) -> None:
    """Copy what is kept to the site."""
    if failure is None:
        for name in KEPT:
            _copy(package() / name, Path(app.outdir) / "_static" / "mathjax" / name)


def package() -> Path:
    """MathJax's folder in the installed package."""
    spec = find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "missing package: got none, expected sphinx-mathjax-offline (extra `book`)"
        )
    return Path(spec.origin).parent / "static" / "mathjax"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=LEFT_OUT)
    else:
        shutil.copyfile(source, target)
