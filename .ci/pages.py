"""Execute the book's pages into the cache from which Sphinx takes their outputs: `python .ci/pages.py [first|early]`.

``first`` executes the pages that `first_pages.py` builds, ``early`` those that show no result of
this build's experiments, and without either all are executed. A page is executed again if its code
has changed, or anything that its code can read: the library, recorded results, installed packages.
Several are executed at a time, because they measure nothing. A cell may take as long as it needs: a
busy machine is slow, not wrong. A page that fails ends the build before any page is written.
"""

import hashlib
import json
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook

from first_pages import documents, first_documents

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results"
CACHE = ROOT / "_build" / ".jupyter_cache"  # `_config.yml` names it, too
KEYS = CACHE / "keys.json"
# What a page's code can read, beside results.
READ = (
    "src",
    "chapters",
    "assignments",
    "examples",
    "experiments/presets",
    "requirements.lock",
    "CITATION.cff",
)
# Pages that show what this build has measured, and pages that show a reader's own runs.
SHOWS_BUILD, SHOWS_OWN = re.compile(r"results/quick|recorded\.table"), re.compile(r"\brecorded\b")
COLOURS = re.compile(r"\x1b\[[\d;]*m")  # of a traceback, for a terminal
AT_A_TIME = min(os.cpu_count() or 1, 4)
SILENT_SECONDS = 15
START_SECONDS = 600  # that a kernel may take to start on a busy machine
NOT_READ = {"__pycache__", ".ipynb_checkpoints", "_ext", "_static", "_templates", "images"}


_running: dict[str, float] = {}  # pages that are executed now, and since when
_last_said = time.monotonic()


def main(which: str) -> int:
    """Execute the pages that need it, and return the exit code."""
    CACHE.mkdir(parents=True, exist_ok=True)
    keys = json.loads(KEYS.read_text(encoding="utf8")) if KEYS.exists() else {}
    pages = dict(wanted(which))
    stale = [
        page
        for page, notebook in pages.items()
        if keys.get(page) != key(page) or not is_cached(notebook)
    ]
    print(f"==> pages: {len(stale)} of {len(pages)} to execute, {AT_A_TIME} at a time", flush=True)
    threading.Thread(target=break_silence, daemon=True).start()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        jobs = {pool.submit(execute, page, pages[page]): page for page in stale}
        for number, job in enumerate(as_completed(jobs), start=1):
            page, done = jobs[job], job.result()
            if done.err:
                pool.shutdown(cancel_futures=True)
                traceback = COLOURS.sub("", done.exc_string)
                print(f"{traceback}\nerror: {page}.md: a cell failed", file=sys.stderr)
                return 1
            keep(page, done)
            keys[page] = key(page)
            KEYS.write_text(json.dumps(keys), encoding="utf8")
            say(f"{page}: {done.time:.1f} s, {number} of {len(stale)}")
    return 0


def execute(page: str, notebook: Any) -> Any:
    """Execute a page in a kernel of its own, in its folder, and return what came of it."""
    _running[page] = time.monotonic()
    done = single_nb_execution(
        notebook, str((ROOT / page).parent), None, False, startup_timeout=START_SECONDS
    )
    del _running[page]
    return done


def say(text: str) -> None:
    """Print a line of progress."""
    global _last_said
    _last_said = time.monotonic()
    print(f"    {text}", flush=True)


def break_silence() -> None:
    """Say which pages are executed whenever no line has come for some time, until this process ends."""
    while True:
        time.sleep(1)
        now = time.monotonic()
        if now > _last_said + SILENT_SECONDS and _running:
            say(
                ", ".join(
                    f"{page}: {now - began:.0f} s so far" for page, began in list(_running.items())
                )
            )


def wanted(which: str) -> Iterator[tuple[str, Any]]:
    """Yield the pages that are asked for and have cells, as notebooks, in the order of the book."""
    first = first_documents()
    for page in documents():
        path = ROOT / f"{page}.md"
        text = path.read_text(encoding="utf8") if path.exists() else ""
        if not is_myst_markdown_notebook(text) or (which == "early" and SHOWS_BUILD.search(text)):
            continue
        if which != "first" or page in first:
            yield page, read_myst_markdown_notebook(text, add_source_map=True, path=str(path))


def is_cached(notebook: Any) -> bool:
    """Return whether the cache has the outputs of this code."""
    try:
        get_cache(str(CACHE)).match_cache_notebook(notebook)
    except KeyError:
        return False
    return True


def keep(page: str, done: Any) -> None:
    """Keep the outputs of a page in the cache, in place of earlier ones."""
    bundle = CacheBundleIn(done.nb, str(ROOT / f"{page}.md"), data={"execution_seconds": done.time})
    get_cache(str(CACHE)).cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def key(page: str) -> str:
    """Return a digest of what a page's code can read, its own text left out."""
    text = (ROOT / f"{page}.md").read_text(encoding="utf8")
    read = [around()]
    if SHOWS_BUILD.search(text):
        read += [digest("experiments/results/quick"), texts()]
    if SHOWS_OWN.search(text):
        folders = sorted(
            each.name for each in RESULTS.iterdir() if each.name not in ("quick", "reference")
        )
        read += [digest(f"experiments/results/{name}") for name in folders]
    return hashlib.sha256(" ".join(read).encode()).hexdigest()


@cache
def around() -> str:
    """Return a digest of what every page can read, and of what it runs with."""
    installed = {each.name: each.version for each in distributions()}
    # It may be installed while pages are executed, and none of these needs it.
    installed.pop("horovod", None)
    packages = [f"{name} {version}" for name, version in sorted(installed.items())]
    machine = f"{platform.platform()} {platform.python_version()} {os.cpu_count()}"
    return " ".join([*map(digest, (*READ, "experiments/results/reference")), *packages, machine])


@cache
def texts() -> str:
    """Return a digest of all pages' texts: one of them lists which pages show a run."""
    hashed = hashlib.sha256()
    for path in sorted((ROOT / "chapters").glob("*.md")):
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


@cache
def digest(name: str) -> str:
    """Return a digest of a file, or of a folder's files.

    Pages and executed notebooks are none that a page reads.
    """
    top, hashed = ROOT / name, hashlib.sha256()
    paths = sorted(path for path in top.rglob("*") if path.is_file()) if top.is_dir() else [top]
    for path in paths:
        if not NOT_READ.intersection(path.parts) and path.suffix not in (".md", ".ipynb"):
            hashed.update(
                f"{path.relative_to(ROOT)} {path.stat().st_size} ".encode() + path.read_bytes()
            )
    return hashed.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "all"))
