"""A page's notebook as the site offers it runs where there is nothing but Jupyter, git and a package index."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import yaml
from IPython.core.interactiveshell import InteractiveShell
from myst_nb.core.read import read_myst_markdown_notebook
from test_site import SITE, needs_site

from places import ROOT

# A cell of at most ten minutes: the first compiles what later ones find.
RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=600).execute()
"""
HERE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(autouse=True)
def _extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "chapters" / "_ext"))


def written(page: str) -> Any:
    return read_myst_markdown_notebook((ROOT / f"{page}.md").read_text(encoding="utf8"))


def prepared(page: str, address: str = "") -> Any:
    from book_site.anywhere import prepare

    notebook = written(page)
    prepare(notebook, page, address)
    return notebook


@pytest.mark.parametrize(
    ("page", "root", "extras"),
    [
        ("chapters/two-tree-all-reduce", "..", "pages"),
        ("chapters/preface", "..", "pages"),
        ("chapters/claims", "..", "pages"),
        ("chapters/all-reduce-sweep", "..", "pages"),
        ("chapters/model-parallelism", "..", "pages,experiments"),
        ("chapters/any-topology", "..", "pages,synthesis"),
        ("assignments/ring/handout", "../..", "pages,course"),
    ],
)
def test_the_first_cell_sets_up_and_all_others_are_there(page: str, root: str, extras: str) -> None:
    address = "https://example.org/book"
    first, *others = prepared(page, address).cells
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    fetch = f"git fetch -q --depth 1 {address} {head.strip()} && git checkout -q FETCH_HEAD"
    assert first.source.splitlines()[:3] == [
        f"!git init -q collectives && cd collectives && {fetch}",
        f"%cd -q collectives/{page.rpartition('/')[0]}",
        f'%pip install -q -e "{root}[{extras}]"',
    ]
    text = nbformat.writes(prepared(page, address))
    assert text.count(address) == 1
    assert "myst_nb" not in text
    before = written(page).cells
    assert [cell.cell_type for cell in others] == [cell.cell_type for cell in before]
    assert [cell.source.count("\n") for cell in others] == [
        cell.source.count("\n") for cell in before
    ]


def test_without_an_address_the_first_cell_asks_for_it_and_installs_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = prepared("chapters/preface").cells[0].source
    assert "REPOSITORY" not in source
    shell = InteractiveShell()
    ran: list[str] = []
    monkeypatch.setattr(
        shell, "system", lambda command: ran.append(shell.var_expand(command, depth=1))
    )
    monkeypatch.setattr(shell, "run_line_magic", lambda *words, **_: ran.append(" ".join(words)))
    done = shell.run_cell(source)
    assert (str(done.error_in_exec)[:18], ran) == ("ADDRESS: got none,", [])
    capfd.readouterr()
    given = source.replace('ADDRESS = ""', 'ADDRESS = "/a/copy"')
    assert shell.run_cell(given).success
    fetch, folder, install = ran
    assert fetch.startswith(
        "git init -q collectives && cd collectives && git fetch -q --depth 1 /a/copy "
    )
    assert (folder, install) == ("cd -q collectives/chapters", 'pip install -q -e "..[pages]"')


@pytest.mark.parametrize(
    ("address", "offered"),
    [("", False), ("https://example.org/a/b", False), ("https://github.com/a/b.git", True)],
)
def test_colab_opens_what_the_workflow_puts_on_a_branch(address: str, offered: bool) -> None:
    from book_site.anywhere import launch

    app = SimpleNamespace(config=SimpleNamespace(html_theme_options={"repository_url": address}))
    group: dict[str, Any] = {"label": "download-buttons", "buttons": []}
    context = {"header_buttons": [{"label": "search"}, group], "ipynb_source": "chapters/x.ipynb"}
    launch(app, "chapters/x", "page.html", context, None)
    urls = [button["url"] for button in group["buttons"]]
    assert (
        urls
        == ["https://colab.research.google.com/github/a/b/blob/notebooks/chapters/x.ipynb"]
        * offered
    )
    site = yaml.safe_load((ROOT / ".github" / "workflows" / "site.yml").read_text(encoding="utf8"))
    (push,) = (step["run"] for step in site["jobs"]["notebooks"]["steps"] if "run" in step)
    assert re.search(r"init .*-b notebooks\b", push)


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with Jupyter's kernel and no package of ours."""
    folder = tmp_path_factory.mktemp("jupyter")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run(
        [folder / "bin" / "pip", "install", "-q", "ipykernel", "nbclient"], check=True, env=HERE
    )
    return folder / "bin"


@needs_site
@pytest.mark.extended
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", ["ring-all-reduce", "cost-model", "two-tree-all-reduce"])
def test_a_downloaded_notebook_runs_in_an_empty_environment(
    page: str, jupyter: Path, tmp_path: Path
) -> None:
    text = (SITE / "_sources" / "chapters" / f"{page}.ipynb").read_text(encoding="utf8")
    # Of a site without an address.
    asked, replaced = re.subn(r'(ADDRESS = \\")', rf"\1{ROOT.as_uri()}", text)
    here, known = re.subn(r"(git fetch -q --depth 1) [^\s{]+", rf"\1 {ROOT.as_uri()}", asked)
    assert replaced + known == 1
    (tmp_path / "page.ipynb").write_text(here, encoding="utf8")
    environment = HERE | {"PATH": f"{jupyter}:{HERE['PATH']}"}
    command = [jupyter / "python", "-c", RUN, "page.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
