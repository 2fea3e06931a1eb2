"""Plant each fault of `mutation.toml` in a copy of the sources: `python tests/mutation.py [NAME ...]`.

A mutant is killed if a test of its module that `make test` runs fails. It takes a minute where
numba compiles again.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "src"
TEST_SECONDS = 120  # a test that takes longer has failed
SECONDS = 600  # all of them; then a test hangs although its own time was over


class Mutant(NamedTuple):
    """One edit of a file below `src`, and the tests that may notice."""

    name: str
    file: Path
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]


def mutants() -> Iterator[Mutant]:
    """All of them, module by module."""
    for module in tomllib.loads((TESTS / "mutation.toml").read_text())["module"]:
        file, tests = Path("collectives", module["file"]), tuple(module["tests"])
        for each in module["mutant"]:
            yield Mutant(each["name"], file, each["old"], each["new"], each["breaks"], tests)


def plant(mutant: Mutant, sources: Path) -> None:
    """Edit the copy.

    Numba compiles again what is in the folder of a file that is newer than its cache.
    """
    file = sources / mutant.file
    file.write_text(file.read_text().replace(mutant.old, mutant.new))


def killer(mutant: Mutant) -> str | None:
    """The test that fails with this mutant, or None."""
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder, "src")
        shutil.copytree(SOURCES, sources)
        plant(mutant, sources)
        words = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not extended",
            f"--timeout={TEST_SECONDS}",
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words, *(str(TESTS / each) for each in mutant.tests)],
            cwd=TESTS.parent,
            env=os.environ | {"PYTHONPATH": str(sources)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return ended(process.returncode, said)


def ended(code: int, said: str) -> str | None:
    """The test that failed; None if all pass.

    Raises RuntimeError where the tests could not run at all.
    """
    if failed := re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - |$)", said, re.MULTILINE):
        return failed[1]
    if code < 0 or " Timeout +" in said:
        return f"the end of the tests with code {code}"
    if code:
        raise RuntimeError(f"the tests did not run:\n{said}")
    return None


def main(names: list[str]) -> int:
    """Print each mutant's fate; 1 if one survives."""
    survivors = 0
    for mutant in mutants():
        if not names or mutant.name in names:
            test = killer(mutant)
            survivors += test is None
            print(f"{mutant.name}: {'killed by ' + test if test else 'SURVIVED'}", flush=True)
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
