"""Run a page's cells in the browser as Jupyter does, and return what they show; the worker's script calls `run`.

numba compiles nothing in a browser. There Python runs the functions that the library compiles elsewhere.
"""

import ast
import builtins
import linecache
import logging
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import imports

without_numba = ModuleType("collectives.compiled")
without_numba.__dict__["compiled"] = lambda function: function
sys.modules["collectives.compiled"] = without_numba

FOLDER = Path(__file__).parent  # of the library, too
logging.getLogger("matplotlib.font_manager").setLevel(
    logging.ERROR
)  # it would say that it reads them

LARGEST = 8192  # cells (rank, chunk) that the player draws
MARKED = re.compile(r"^ *(\d+) \|.*<--", re.MULTILINE)  # the step at which a proof points
CODE = "your code"  # the name in tracebacks of what a reader writes for an answer
names: dict[str, Any] = {"__name__": "__main__"}


def after_loading() -> None:
    """Leave Matplotlib the fonts of the figures alone: it reads all that there are, which takes seconds."""
    for path in (FOLDER / "matplotlib" / "mpl-data" / "fonts").glob("*/*"):
        if not path.name.startswith("DejaVuSans"):
            path.unlink()


def needed(source: str, available: list[str]) -> list[str]:
    """Return the packages to load before these lines can run; none where they cannot be read."""
    try:
        return sorted(imports.packages(source, FOLDER)[0].intersection(available))
    except SyntaxError:
        return []


def run(
    source: str, cell: str, is_asked: bool, show: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run a cell and return what its last line is worth, or its error; ``cell`` names it in tracebacks.

    What the cell prints goes to standard output, what it displays to ``show``. Of a cell that runs only because
    another one needs it, a last line that shows a value is left out.
    """
    builtins.__dict__["display"] = lambda *values: [show(shown(value)) for value in values]
    linecache.cache[cell] = (len(source), None, source.splitlines(keepends=True), cell)
    try:
        tree = ast.parse(source, cell)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell, "exec"), names)
        if not isinstance(last, ast.Expr) or not is_asked:
            return {}
        value = eval(compile(ast.Expression(last.value), cell, "eval"), names)
        if value is None:
            return proved(last.value)
        return {} if source.rstrip().endswith(";") else shown(value)
    except BaseException as error:
        return failure(error, cell)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def shown(value: Any) -> dict[str, Any]:
    """Return a value as text, as HTML if it has such a form, and for a schedule what the player needs."""
    html = None if isinstance(value, type) else getattr(value, "_repr_html_", None)
    return {"text": repr(value), "html": html() if html else None, "schedule": played(value)}


def proved(call: ast.expr) -> dict[str, Any]:
    """Return the schedule of a cell that ends with its proof: it is played."""
    if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("verify") and call.args:
        return {"schedule": played(eval(compile(ast.Expression(call.args[0]), "", "eval"), names))}
    return {}


def played(value: Any) -> dict[str, Any] | None:
    """Return a schedule as the page's player reads it, or None for another value and for a large schedule."""
    from collectives.core.schedule import Schedule, Step, parts

    if not isinstance(value, Schedule) or value.switches or value.p * value.k > LARGEST:
        return None
    steps = [
        [getattr(step, column).astype(int).tolist() for column in Step.__slots__]
        for step in value.steps()
    ]
    fields = {name: getattr(value, name) for name in ("collective", "p", "k", "root")}
    return fields | {"parts": parts(value.collective, value.p), "steps": steps}


def failure(error: BaseException, cell: str) -> dict[str, Any]:
    """Return an error's traceback from the cell on, the cell's line, and the schedule that a proof has refused."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    first = next(
        (nth for nth, it in enumerate(frames) if it.f_code.co_filename == cell), len(frames)
    )
    inner = error.__traceback__
    for _ in range(first):
        inner = inner.tb_next if inner else None
    lines = [line for frame, line in traceback.walk_tb(inner) if frame.f_code.co_filename == cell]
    is_syntax = isinstance(error, SyntaxError) and error.filename == cell
    refused = [it.f_locals.get("schedule") for it in frames if it.f_code.co_name == "verify"]
    return {
        "missing": error.name if isinstance(error, ModuleNotFoundError) else None,
        "error": "".join(traceback.format_exception(type(error), error, inner)),
        "summary": traceback.format_exception_only(type(error), error)[-1].partition("\n")[0],
        "line": error.lineno
        if isinstance(error, SyntaxError) and is_syntax
        else (lines or [0])[-1],
        "schedule": played(refused[0]) if refused else None,
        "step": step_of(error),
    }


def judge(given: Any) -> dict[str, Any]:
    """Return what is wrong with a reader's ``mine`` for the first p, or the schedule and a table of its times.

    ``given`` is the code, the collective, and a number of ranks; 0 asks for all, and for the table.
    """
    import playground

    source, collective, p = given

    def proved_and_compared(own: dict[str, Any]) -> dict[str, Any]:
        mine = own["mine"]
        for ranks in [p] if p else playground.RANKS:
            playground.proved(mine, collective, ranks)
        table = None if p else playground.compared(mine, collective)
        return {"html": table, "schedule": played(mine(p or 8))}

    return judged(source, proved_and_compared)


def check(given: Any) -> dict[str, Any]:
    """Return why an answer to an exercise is wrong. Nothing for a right one.

    ``given`` is the exercise's name, the numbers asked for as text, and the code if it is asked for.
    """
    import exercises

    name, numbers, code = given
    asked = exercises.EXERCISES[name]
    if isinstance(asked, exercises.Assignment):
        return grade(asked.name, numbers[0], code)
    if isinstance(asked, exercises.Function | exercises.Plan):
        return judged(code, lambda own: wrong_in(asked, own))
    return {"wrong": exercises.numbers_wrong(asked, list(numbers))}


def wrong_in(asked: Any, own: dict[str, Any]) -> dict[str, Any]:
    """Return what is wrong with the function that a reader has defined."""
    import exercises
    import playground

    if isinstance(asked, exercises.Function):
        written = asked.start.partition("def ")[2].partition("(")[0]
        return {"wrong": exercises.function_wrong(asked, own[written])}
    for p in asked.ranks:
        schedule = playground.proved(own["mine"], asked.collective, p)
        if fault := asked.fault(schedule):
            return {"wrong": f"p = {p}: {fault}", "schedule": played(schedule)}
    return {"schedule": played(own["mine"](8))}


def grade(name: str, seed: str, source: str) -> dict[str, Any]:
    """Return the points of an assignment's file with all verdicts, and the schedule of the first that has one."""
    import graded

    if not seed.strip().isdecimal():
        return {"wrong": f"seed: got '{seed}', expected a whole number"}
    try:
        graded.stand_in()
        found = graded.verdicts(name, int(seed), source)
    except BaseException as error:
        return failure(error, CODE)
    points, of = sum(it.points for it in found), sum(it.of for it in found)
    schedules = [it.details["schedule"] for it in found if "schedule" in it.details]
    return {
        "wrong" if points < of else "right": f"{points:g} of {of:g} points.",
        "html": graded.table(found),
        "schedule": played(schedules[0]) if schedules else None,
    }


def judged(source: str, judge: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Run a reader's code in a namespace of its own, and return what is said of that, or the error."""
    import playground

    linecache.cache[CODE] = (len(source), None, source.splitlines(keepends=True), CODE)
    own: dict[str, Any] = {"__name__": "mine"}
    try:
        exec(compile(source, CODE, "exec"), own)
        return judge(own)
    except playground.WrongError as error:
        return {"wrong": str(error), "schedule": played(error.schedule), "step": step_of(error)}
    except BaseException as error:
        return failure(error, CODE)


def step_of(error: BaseException) -> int:
    """Return how many steps to play until the one at which a proof points."""
    marked = MARKED.search(str(error))
    return int(marked[1]) + 1 if marked else 0
