"""Find the packages that the code of a page imports, itself and through the library."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


def imports(source: str, *, of_functions: bool) -> list[str]:
    """Return the modules that a text imports, but for types alone, and maybe without what its functions import.

    >>> imports("import numpy as np; from os import path", of_functions=True)
    ['numpy', 'os', 'os.path']
    """
    return list(_walk(ast.parse(source).body, of_functions))


def _walk(body: list[ast.stmt], of_functions: bool) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.Import):
            yield from (each.name for each in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module
            yield from (
                f"{statement.module}.{each.name}" for each in statement.names
            )  # maybe modules
        elif of_functions or not isinstance(statement, ast.FunctionDef):
            yield from _inside(statement, of_functions)


def _inside(statement: ast.stmt, of_functions: bool) -> Iterator[str]:
    if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
        return
    for part in ("body", "orelse", "finalbody"):
        yield from _walk(getattr(statement, part, []), of_functions)
    for handler in getattr(statement, "handlers", []):
        yield from _walk(handler.body, of_functions)


def packages(source: str, library: Path) -> tuple[set[str], set[str]]:
    """Return the packages of others that a text imports, and the modules that it loads of the library in a folder.

    What functions of the library import is not counted: most of it is for what no page does, such as starting ranks.
    """
    needed, loaded = set[str](), set[str]()
    todo = imports(source, of_functions=True)
    while todo:
        module = todo.pop()
        package = module.partition(".")[0]
        if not (library / package).is_dir():
            needed.add(package)
        elif module not in loaded:
            loaded.add(module)
            todo += [*_parents(module), *_of_file(library, module)]
    return needed, loaded


@cache
def _of_file(library: Path, module: str) -> list[str]:
    """Return the modules that a module imports, and an empty list if there is no file of that name."""
    path = library.joinpath(*module.split("."))
    files = [each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()]
    return [it for file in files for it in imports(file.read_text("utf8"), of_functions=False)]


def _parents(module: str) -> list[str]:
    names = module.split(".")
    return [".".join(names[:length]) for length in range(1, len(names))]
