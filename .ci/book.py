"""Make the book: first pages to read, Horovod, the experiments, all pages (`make book` does, when packages are there).

What needs processors overlaps: the loops of the engine are compiled beside the first pages, and
Horovod beside the pages that show no result of this build. Nothing else runs beside an experiment.
The site is built in a folder of its own, and takes the place of the last one when it is whole.
After an interruption the next call goes on: packages, compiled code, Horovod's wheel, rows and
executed pages are kept as soon as they are there.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
SITE, NEW, BUILT_FROM = BUILD / "html", BUILD / "new", BUILD / ".built-from"
BIN = Path(sys.executable).parent
COMPILED = ROOT / ".venv" / ".compiled"
SCHEDULES = ROOT / "chapters" / "_static" / "schedules"
IPYTHON = BUILD / ".ipython"
COMPILE = {
    "the simulator": "from collectives.cli import main; main()",
    "the engine": "from collectives.engine import group, kernels; kernels.compile_common()",
}
SIMULATION = ("simulate", "all_reduce", "ring", "-p", "24", "--machine", "summit")
BEGAN = float(os.environ.get("BEGAN") or time.time())


class StepError(RuntimeError):
    """A step has failed, and has said why; the message names it."""


def main() -> None:
    """Take all steps."""
    IPYTHON.joinpath("profile_default").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / ".ci" / "ipython_kernel_config.py", IPYTHON / "profile_default")
    script("-m", "collectives.figures.player", SCHEDULES)
    if not COMPILED.exists():
        print("==> 1/3 environment: compiling the simulator and the engine, once", flush=True)
    simulator, engine = (compiling(name) for name in COMPILE)
    try:
        wait(simulator, "compiling the simulator")
        if not SITE.exists():
            first_pages()
        wait(engine, "compiling the engine")
        COMPILED.touch()
        beside = {
            "building Horovod": "build_horovod.py",
            "fetching Python for the pages": "page_python.py",
        }
        started = {
            name: subprocess.Popen([sys.executable, ROOT / ".ci" / file], cwd=ROOT)
            for name, file in beside.items()
        }
        try:
            script(".ci/pages.py", "early")
            for name, process in started.items():
                wait(process, name)
        finally:
            for process in started.values():
                process.terminate()
    finally:
        for process in (simulator, engine):
            process.terminate()
    checksum = subprocess.run(
        ["make", "-s", "checksum"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    print(f"==> 2/3 experiments: preset quick, after {after()}", flush=True)
    notebooks = sorted((ROOT / "experiments").glob("*.ipynb"))
    run(BIN / "collectives", "run", *notebooks, "--preset", "quick", "--replace")
    print(f"==> 3/3 book: after {after()}", flush=True)
    script(".ci/pages.py")
    site()
    BUILT_FROM.write_bytes(checksum)
    print(f"==> 3/3 book: done after {after()}", flush=True)


def first_pages() -> None:
    """Build the first pages, and print their address."""
    script(".ci/pages.py", "first")
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "first_pages.py"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise StepError("first pages")
    print(
        f"==> first pages after {after()}, to read while the rest is made: {done.stdout.strip()}",
        flush=True,
    )


def site() -> None:
    """Build all pages from clean: an incremental build hides the warnings of pages that it does not read again."""
    shutil.rmtree(NEW, ignore_errors=True)
    run(BIN / "jupyter-book", "build", ROOT, "--path-output", NEW, "-n", "-W", "--keep-going")
    script(".ci/gates.py", "--executed", NEW / "_build" / "jupyter_execute")
    for name in ("html", "jupyter_execute"):
        shutil.rmtree(BUILD / name, ignore_errors=True)
        (NEW / "_build" / name).rename(BUILD / name)
    shutil.rmtree(NEW)


def compiling(name: str) -> "subprocess.Popen[bytes]":
    """Start to compile a part of the library, and return the process."""
    words = SIMULATION if name == "the simulator" else ()
    return subprocess.Popen(
        [sys.executable, "-c", COMPILE[name], *words], cwd=ROOT, stdout=subprocess.DEVNULL
    )


def wait(process: "subprocess.Popen[bytes]", what: str) -> None:
    """Wait for a process. Raises StepError where it fails."""
    if process.wait():
        raise StepError(what)


def script(*words: str | Path) -> None:
    """Run a script by this Python."""
    run(sys.executable, *words)


def run(*command: str | Path) -> None:
    """Run a command.

    Raises StepError where it fails; it has said why. Ctrl-C reaches it, too, and it is waited for.
    """
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise
    if code:
        raise StepError(" ".join(Path(word).name for word in map(str, command[:3])))


def after() -> str:
    """Return how long ago `make` began."""
    minutes, seconds = divmod(round(time.time() - BEGAN), 60)
    return f"{minutes} min {seconds} s"


if __name__ == "__main__":
    os.environ["IPYTHONDIR"] = str(IPYTHON)
    try:
        main()
    except StepError as error:
        kept = f"; the site in {SITE.relative_to(ROOT)} is as it was" if SITE.exists() else ""
        sys.exit(f"error: {error} failed{kept}")
    except KeyboardInterrupt:
        sys.exit(
            "\ninterrupted: `make book` goes on where it was; what was installed, compiled and measured is kept"
        )
