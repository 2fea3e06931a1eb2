"""Gates: faults of the text and of recorded results, each a line `file:line: what`, and exit code 1.

`make check` runs those that read sources. `make book` runs ``gates.py --executed FOLDER`` as well,
on the notebooks that papermill and the build have executed.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import yaml
from pydantic import TypeAdapter

from collectives.algorithms import ALGORITHMS, PACKED
from collectives.algorithms.levels import is_plan
from collectives.renamed import current_name
from collectives_book import computed, load

ROOT = Path(__file__).resolve().parent.parent
PLACEHOLDER = re.compile(
    r"\b(?:TODO|FIXME|TBD|XXX)\b|(?i:\blorem ipsum\b|\bcoming soon\b|\bto be written\b)"
)
# A cell, its options and its code; those whose code a page leaves out cannot be copied from it.
CELL = re.compile(
    r"^(`{3,})\{code-cell\}.*?\n((?::\w+:[^\n]*\n)*)(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL
)
LEFT_OUT = re.compile(r"\bremove-(?:input|cell)\b")
WIDEST = 80  # columns of code on a page, beside the two sidebars


def placeholders(path: Path) -> Iterator[str]:
    """Yield a fault for each text that is still to be written."""
    for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), start=1):
        yield from (
            f"{path}:{number}: placeholder: got {match[0]!r}"
            for match in PLACEHOLDER.finditer(line)
        )


def shown(text: str) -> list[tuple[int, str]]:
    """Return the cells of a page that a reader can copy: the number of the line before their code, and the code."""
    cells = [cell for cell in CELL.finditer(text) if not LEFT_OUT.search(cell[2] or "")]
    return [(text.count("\n", 0, cell.start(3)), cell[3]) for cell in cells]


def copied(text: str) -> str:
    """Return the code of these cells alone; lines keep their numbers."""
    lines = [""] * text.count("\n")
    for before, code in shown(text):
        lines[before : before + code.count("\n")] = code.splitlines()
    return "\n".join(lines)


def cells(pages: list[Path]) -> Iterator[str]:
    """Yield a fault for each name that no cell defines that a reader can copy, and each line that a page cuts off."""
    with TemporaryDirectory() as folder:
        for page in pages:
            (Path(folder) / f"{page.stem}.py").write_text(
                copied(page.read_text(encoding="utf8")), encoding="utf8"
            )
        rules = ["--select=F821,E501", f"--line-length={WIDEST}", "--config=builtins=['display']"]
        command = [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--no-cache",
            "--output-format=json",
            *rules,
        ]
        found = json.loads(
            subprocess.run([*command, folder], stdout=subprocess.PIPE, check=False).stdout
        )
    by_name = {page.stem: page for page in pages}
    for one in found:
        yield f"{by_name[Path(one['filename']).stem]}:{one['location']['row']}: a copied cell: {one['message']}"


def stale(path: Path, presets: Path = ROOT / "experiments" / "presets") -> Iterator[str]:
    """Yield the ways in which a recorded result is not what its preset would make: values, and algorithms that went."""
    settings = json.loads(path.read_text(encoding="utf8")).get("settings", [])
    names = {"auto", PACKED, *(name for _, name in ALGORITHMS)}
    measured = {
        current_name(name).partition("@")[0]
        for each in settings
        for name in each.get("algorithms", ())
    }
    for gone in sorted(measured - names):
        if not is_plan(gone) and not (ROOT / gone.partition(":")[0]).is_file():
            yield f"{path}:1: stale: measured with {gone!r}, and no algorithm has this name"
    preset = presets / f"{path.parent.name}.yaml"
    given = (
        yaml.safe_load(preset.read_text(encoding="utf8")).get(path.stem, {})
        if preset.exists()
        else {}
    )
    if path.parent.name.startswith("slurm"):
        given.pop("ranks", None)  # the job's number of tasks decides
    for name, typed in given.items():
        if made := [each[name] for each in settings if name in each]:
            field = load(path.stem).model_fields[name]
            # "400ms" is 0.4.
            read = TypeAdapter(Annotated[field.annotation, *field.metadata, None]).validate_python
            if isinstance(typed, list):  # each launch may have one of them
                made = [each if isinstance(each, list) else [each] for each in made]
            if not fits(read(typed), [read(each) for each in made]):
                yield f"{path}:1: stale: {name}: measured with {made[0]}, preset has {typed}"


def outdated(folder: Path = computed.FOLDER) -> Iterator[str]:
    """Yield a fault for each of the computed results that is older than its code, or is not there."""
    for name in computed.outdated(folder):
        yield f"{folder / name}.json:1: stale: computed by other code; run: {computed.command(name)}"


def fits(given: Any, made: list[Any]) -> bool:
    """Return whether what a preset gives was measured.

    Lists may have been measured in several launches.
    """
    if isinstance(given, list):
        return all(any(each in several for several in made) for each in given)
    return given in made


def executed(path: Path) -> Iterator[str]:
    """Yield the cells that failed or were not executed, and a run of papermill that did not end."""
    notebook = json.loads(path.read_text(encoding="utf8"))
    if not notebook["metadata"].get("papermill", {"end_time": "not papermill's"}).get("end_time"):
        yield f"{path}:1: papermill: the run has no end time"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and "".join(cell["source"]).strip():
            if cell.get("execution_count") is None:
                yield f"{path}:1: cell {cell.get('id')} was not executed"
            if any(output["output_type"] == "error" for output in cell["outputs"]):
                yield f"{path}:1: cell {cell.get('id')} raised an exception"


def sources() -> Iterator[str]:
    """Yield the faults that `make check` looks for."""
    read = (
        "chapters/*.md",
        "assignments/*/handout.md",
        "experiments/*.ipynb",
        "README.md",
        "CONTRIBUTING.md",
    )
    for path in (path for pattern in read for path in ROOT.glob(pattern)):
        yield from placeholders(path)
    yield from cells(sorted((ROOT / "chapters").glob("*.md")))
    for path in (ROOT / "experiments" / "results" / "reference").rglob("*.json"):
        yield from stale(path)
    yield from outdated()


def built(pages: Path) -> Iterator[str]:
    """Yield the faults that `make book` looks for: in the quick preset's notebooks, and in the pages executed."""
    for folder in (ROOT / "experiments" / "results" / "quick", pages):
        for path in folder.rglob("*.ipynb"):
            yield from executed(path)


if __name__ == "__main__":
    found = built(Path(sys.argv[2])) if "--executed" in sys.argv else sources()
    faults = sorted(each.removeprefix(f"{ROOT}/") for each in found)
    print(*faults or ["no fault"], sep="\n")
    sys.exit(bool(faults))
