"""Files that the theme brings and no page asks for: maps of its sources, translations, fonts for old browsers."""

import shutil
from pathlib import Path
from typing import Any

DROPPED = [
    "_static/locales",
    "_static/**/*.map",
    "_static/vendor/**/*.ttf",
    "_static/*webpack-macros.html",
]


def drop(app: Any, _: Exception | None) -> None:
    """Delete them from the site."""
    for pattern in DROPPED:
        for path in list(Path(app.outdir).glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
