"""Gates: faults of the text and of recorded results, each a line `file:line: what`, and exit code 1.

`make check` runs those that read sources. `make book` runs ``gates.py --executed`` as well, on the notebooks that
papermill and the build have executed.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SPELLED = ("chapters", "src", "tests", "assignments", "examples", "experiments/presets", ".ci", "README.md")

PLACEHOLDER = re.compile(r"\b(?:TODO|FIXME|TBD|XXX)\b|(?i:\blorem ipsum\b|\bcoming soon\b|\bto be written\b)")

# A confidence that few samples cannot have; `statements.intervals` writes the true one.
CONFIDENCE = re.compile(r"\b95 ?% confidence\b")

# A quantity with a unit that a run measures.
QUANTITY = re.compile(r"(?<![\w.,:])\d[\d,.]*\s?(?:ns|µs|us|ms|[GM]i?B/s|[GM]bit/s|%)(?![\w/])")
# Quantities that are set, not measured: links of the sample machine, of emulated hosts, of a data sheet; and the whole.
SET = {"5 µs", "25 GB/s", "5 ms", "25 MB/s", "20 ms", "6.25 MB/s", "1 µs", "250 GB/s", "200 Gbit/s", "100%"}
# Others that no run of this book measures, by file: a phrase of the paragraph, and why.
GIVEN = {
    "chapters/claims.md": {"within 5%": "the ledger's rule for a verdict"},
    "chapters/cluster-in-slow-motion.md": {"compare libraries at": "links that a reader may set"},
    "chapters/collectives-sweep.md": {"difference of 10%": "advice, not a measurement"},
    "chapters/cost-model.md": {
        "At 5 µs a step that is": "the product of two numbers of the sentence",
        "Both directions added": "how a data sheet counts",
    },
    "chapters/massive-scale.md": {
        "which fits the ring's latency": "a parameter of the fit, explained there",
        "NCCL 2.4 expects": "NCCL's own constants, in nccl.py with their source",
        "read off its figures": "the accuracy of reading a published figure",
    },
    "chapters/hiding-communication.md": {"InfiniBand carries": "Summit's published numbers, cited above it"},
    "chapters/why-many-gpus.md": {"does not fit": "a limit, not a measurement"},
}
# Directives whose content is prose; every other fence holds code.
PROSE = "admonition|dropdown|note|tip|warning|important|seealso|glossary|figure|exercise|solution|list-table|card|grid"
FENCE = re.compile(r"^(`{3,})(.*?)\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
IS_PROSE = re.compile(rf"\{{(?:{PROSE})\}}")
FRONT = re.compile(r"\A---\n.*?^---$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$", re.DOTALL)
# A cell, its options and its code; those whose code a page leaves out cannot be copied from it.
CELL = re.compile(r"^(`{3,})\{code-cell\}.*?\n((?::\w+:[^\n]*\n)*)(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
LEFT_OUT = re.compile(r"\bremove-(?:input|cell)\b")
WIDEST = 80  # columns of code on a page, beside the two sidebars
CITED = re.compile(r"\{cite|\]\(http|facts?\.md|\bpublished\b|\bmeasured by\b")


class Fault(NamedTuple):
    """Where a fault is, and what to do about it."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path}:{self.line}: {self.text}"


def texts(root: Path = ROOT) -> list[Path]:
    """What a reader reads: pages, handouts, notebooks, and the files at the root."""
    found = [*root.glob("chapters/*.md"), *root.glob("assignments/*/handout.md"), *root.glob("experiments/*.ipynb")]
    return [*sorted(found), *(root / name for name in ("README.md", "CONTRIBUTING.md"))]


def found(pattern: re.Pattern[str], path: Path, message: str) -> Iterator[Fault]:
    """A fault for each match in a file."""
    for number, line in enumerate(path.read_text(encoding="utf8").splitlines(), start=1):
        for match in pattern.finditer(line):
            yield Fault(path, number, f"{message}: got {match[0]!r}")


def placeholders(path: Path) -> Iterator[Fault]:
    """Text that is still to be written."""
    yield from found(PLACEHOLDER, path, "placeholder")


def confidences(path: Path) -> Iterator[Fault]:
    """A confidence that is typed, although the number of samples gives it."""
    yield from found(CONFIDENCE, path, "typed confidence, expected that of the samples")


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _opened(fence: re.Match[str]) -> str:
    """What is in a fence of prose, which may hold further fences; nothing of any other."""
    return f"\n{FENCE.sub(_opened, fence[3])}" if IS_PROSE.match(fence[2]) else _blank(fence)


def prose(text: str) -> str:
    """A page without front matter, code, formulas and exercises, whose numbers are given; lines keep their numbers."""
    text = FENCE.sub(_opened, FRONT.sub(_blank, text))
    text = INLINE.sub(_blank, text)
    before, mark, exercises = text.partition("\n## Exercises")
    _, rest, after = exercises.partition("\n## ")
    return before + "\n" * (mark + exercises[: len(exercises) - len(rest + after)]).count("\n") + rest + after


def typed(path: Path, root: Path = ROOT) -> Iterator[Fault]:
    """Quantities that are typed though a run measures them: no citation, not set, and no reason given above."""
    name, line = path.relative_to(root).as_posix(), 1
    for paragraph in re.split(r"(\n[ \t]*\n)", prose(path.read_text(encoding="utf8"))):
        flat = " ".join(paragraph.split())
        if not CITED.search(flat) and not any(phrase in flat for phrase in GIVEN.get(name, {})):
            for match in QUANTITY.finditer(paragraph):
                if " ".join(match[0].split()) not in SET:
                    at = line + paragraph[: match.start()].count("\n")
                    yield Fault(path, at, f"typed number: got {match[0]!r}, expected a computed or a cited one")
        line += paragraph.count("\n")


def shown(text: str) -> list[tuple[int, str]]:
    """The cells of a page that a reader can copy: the number of the line before their code, and the code."""
    cells = [cell for cell in CELL.finditer(text) if not LEFT_OUT.search(cell[2] or "")]
    return [(text.count("\n", 0, cell.start(3)), cell[3]) for cell in cells]


def copied(text: str) -> str:
    """Their code alone; lines keep their numbers."""
    lines = [""] * text.count("\n")
    for before, code in shown(text):
        lines[before : before + code.count("\n")] = code.splitlines()
    return "\n".join(lines)


def wide(path: Path) -> Iterator[Fault]:
    """A line of a cell that a page would cut off."""
    for number, line in enumerate(copied(path.read_text(encoding="utf8")).splitlines(), start=1):
        if len(line) > WIDEST:
            yield Fault(path, number, f"wide code: got {len(line)} columns, expected at most {WIDEST}")


def undefined(pages: list[Path]) -> Iterator[Fault]:
    """A name that a cell uses and no cell defines that a reader can copy."""
    with TemporaryDirectory() as folder:
        for page in pages:
            (Path(folder) / f"{page.stem}.py").write_text(copied(page.read_text(encoding="utf8")), encoding="utf8")
        options = ["--isolated", "--no-cache", "--select=F821", "--output-format=json"]
        command = [sys.executable, "-m", "ruff", "check", *options, "--config=builtins=['display']", folder]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    by_name = {page.stem: page for page in pages}
    for one in found:
        message = f"a copied cell fails: {one['message']}"
        yield Fault(by_name[Path(one["filename"]).stem], one["location"]["row"], message)


def spelling(root: Path = ROOT) -> Iterator[Fault]:
    """Words that codespell knows to be misspelt; pyproject.toml has its settings."""
    command = [sys.executable, "-m", "codespell_lib", *(name for name in SPELLED if (root / name).exists())]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        path, number, words = line.split(":", 2)
        yield Fault(root / path, int(number), f"misspelt: {words.strip()}")
    if done.returncode not in (0, 65):  # 65: it found some
        raise RuntimeError(f"codespell: exit code {done.returncode}: {done.stderr.strip()[-300:]}")


def stale(path: Path, presets: Path = ROOT / "experiments" / "presets") -> Iterator[Fault]:
    """A recorded result that its preset would not make any more: other values, or an algorithm that has gone."""
    import yaml

    from collectives.algorithms import ALGORITHMS, PACKED
    from collectives.wire import split
    from collectives_book import load

    text = path.read_text(encoding="utf8")
    settings = json.loads(text).get("settings", [])
    preset = presets / f"{path.parent.name}.yaml"
    given = yaml.safe_load(preset.read_text(encoding="utf8")).get(path.stem, {}) if preset.exists() else {}
    if path.parent.name.startswith("slurm"):
        given.pop("ranks", None)  # the job's number of tasks decides
    names = {"auto", PACKED, *(name for _, name in ALGORITHMS)}
    for each in settings:
        algorithms = {split(name)[0].partition("@")[0] for name in each.get("algorithms", ())}
        for gone in sorted(name for name in algorithms - names if not (ROOT / name.partition(":")[0]).is_file()):
            yield Fault(path, line_of(text, gone), f"stale: measured with {gone!r}, and no algorithm has this name")
    for name in given.keys() & {key for each in settings for key in each}:
        field = load(path.stem).Parameters.model_fields[name]
        made = [value(each[name], field) for each in settings if name in each]
        if not fits(value(given[name], field), made):
            yield Fault(path, line_of(text, name), f"stale: {name}: measured with {made[0]}, preset has {given[name]}")


def value(typed: Any, field: Any) -> Any:
    """A parameter as its field reads it: "400ms" is 0.4."""
    from pydantic import TypeAdapter

    return TypeAdapter(Annotated[field.annotation, *field.metadata, None]).validate_python(typed)


def fits(given: Any, made: list[Any]) -> bool:
    """Whether what a preset gives is what was measured; lists may be measured in several launches."""
    if isinstance(given, list):
        return all(any(each in several for several in made) for each in given)
    return given in made


def line_of(text: str, quoted: str) -> int:
    """The first line that has the text in quotation marks; 1 if none has."""
    return next((n for n, line in enumerate(text.splitlines(), start=1) if f'"{quoted}"' in line), 1)


def executed(path: Path) -> Iterator[Fault]:
    """An executed notebook with a failed cell, one that was not executed, or a run that did not end."""
    text = path.read_text(encoding="utf8")
    notebook = json.loads(text)
    run = notebook["metadata"].get("papermill")
    if run and run.get("exception"):
        yield Fault(path, line_of(text, "exception"), "papermill: a cell raised an exception")
    if run is not None and not run.get("end_time"):
        yield Fault(path, line_of(text, "end_time"), "papermill: the run has no end time")
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and "".join(cell["source"]).strip():
            line = line_of(text, str(cell.get("id")))
            if cell.get("execution_count") is None:
                yield Fault(path, line, "the cell was not executed")
            if any(shown["output_type"] == "error" for shown in cell["outputs"]):
                yield Fault(path, line, "the cell raised an exception")


def sources() -> Iterator[Fault]:
    """What `make check` looks at."""
    for path in texts():
        yield from placeholders(path)
        yield from confidences(path)
    chapters = sorted((ROOT / "chapters").glob("*.md"))
    for path in chapters:
        yield from typed(path)
        yield from wide(path)
    yield from undefined(chapters)
    for path in sorted((ROOT / "experiments" / "results" / "reference").rglob("*.json")):
        yield from stale(path)
    yield from spelling()


def built() -> Iterator[Fault]:
    """What `make book` looks at: the quick preset's notebooks, and the pages that the build has executed."""
    folders = (ROOT / "experiments" / "results" / "quick", ROOT / "_build" / "jupyter_execute")
    for path in (path for folder in folders for path in sorted(folder.rglob("*.ipynb"))):
        yield from executed(path)


def main() -> int:
    """Print the faults; returns the exit code."""
    parser = argparse.ArgumentParser("gates.py", description="Find faults of the text and of recorded results.")
    parser.add_argument("--executed", action="store_true", help="look at executed notebooks, not at sources")
    faults = sorted(set(built() if parser.parse_args().executed else sources()))
    print(*faults, sep="\n") if faults else print("no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
