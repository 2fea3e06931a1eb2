"""The parts of chapters/_ext/book_site, without a build."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from places import ROOT


@pytest.fixture(autouse=True)
def _extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "chapters" / "_ext"))


def test_a_figure_becomes_one_file_with_fewer_digits(tmp_path: Path) -> None:
    from book_site.pictures import extract

    # <svg d="M 1.23456 2" t="scale(0.015625)"/>.
    one = "PHN2ZyBkPSJNIDEuMjM0NTYgMiIgdD0ic2NhbGUoMC4wMTU2MjUpIi8+"
    body = f'<img src="data:image/svg+xml;base64,{one}">'
    context: dict[str, Any] = {"body": body + body, "pathto": lambda name, _: f"../{name}"}
    extract(SimpleNamespace(outdir=tmp_path), "chapters/x", "page.html", context, object())
    (written,) = (tmp_path / "_images").iterdir()
    assert written.read_bytes() == b'<svg d="M1.2 2" t="scale(0.015625)"/>'
    assert context["body"] == f'<img src="../_images/{written.name}">' * 2


@pytest.mark.parametrize("address", ["", "https://github.com/example/book"])
def test_one_line_turns_on_links_to_the_repository_and_is_in_every_page_s_commands(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    from book_site import head, repository

    told: list[str] = []
    logger = SimpleNamespace(info=lambda text, *names, **_: told.append(text % names))
    monkeypatch.setattr(repository.logging, "getLogger", lambda _: logger)
    given = {"repository-code": address, "url": "https://example.org"} if address else {}
    monkeypatch.setattr(repository, "citation", lambda: given)
    config = SimpleNamespace(html_theme_options={}, html_baseurl="")
    repository.configure(None, config)
    assert {config.html_theme_options[each] for each in repository.BUTTONS} == {bool(address)}
    assert bool(config.html_baseurl) == bool(address)
    assert [each.startswith("no repository-code in CITATION.cff") for each in told] == [True] * (
        not address
    )
    for page in (ROOT / "chapters").glob("*.md"):
        source = [page.read_text(encoding="utf8")]
        repository.name(SimpleNamespace(config=config), "chapters/x", source)
        assert "REPOSITORY" not in source[0]
        commands = re.findall("^git clone .*", source[0], re.M)
        assert not [line for line in commands if not address or address not in line]
    image = head.links("https://example.org/book", "chapters/x.html")["og:image"]
    assert (ROOT / "chapters" / image.removeprefix("https://example.org/book/")).exists()


def test_an_executed_notebook_has_no_source_to_edit() -> None:
    from book_site.repository import hide_edit

    full = {"type": "javascript", "label": "fullscreen-button"}
    edit, issue = {"label": "source-edit-button"}, {"label": "source-issues-button"}
    for page, left in (("chapters/x", [edit, issue]), ("experiments/results/quick/x", [issue])):
        context = {"header_buttons": [full, {"type": "group", "buttons": [edit, issue]}]}
        hide_edit(None, page, "page.html", context, None)
        assert context == {"header_buttons": [full, {"type": "group", "buttons": left}]}


def test_plain_markdown_has_the_part_of_a_file_that_a_page_includes(tmp_path: Path) -> None:
    from book_site.plain import Page

    (tmp_path / "code.py").write_text("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    (tmp_path / "link.yaml").write_text("name: link\nrate: 25 GB/s\n")
    page = Page(tmp_path, {}, {}, SimpleNamespace(source_encoding="utf8"))
    include = "```{{literalinclude}} {}\n:language: {}\n:{}\n```\n".format
    two = "```python\ndef two():\n    return 2\n```"
    assert page.plain(include("code.py", "python", "pyobject: two")) == two
    inside = f"````{{dropdown}} Code\n:open:\n{include('code.py', 'python', 'pyobject: two')}````\n"
    assert page.plain(inside) == f"**Code**\n\n{two}"
    assert (
        page.plain(include("link.yaml", "yaml", 'start-at: "rate: \\x32"'))
        == "```yaml\nrate: 25 GB/s\n```"
    )


def test_a_notebook_as_markdown_has_what_its_page_shows() -> None:
    from book_site.plain import markdown

    figure = '<figure class="drawn"><img alt="Two trees."><figcaption>Measured &amp; drawn.</figcaption></figure>'
    outputs = [
        new_output("stream", text="8\n"),
        new_output("execute_result", {"text/html": figure}),
    ]
    said = new_output(
        "execute_result",
        {"text/markdown": "It is *faster*.", "text/plain": "<IPython.core.display.M>"},
    )
    player = new_output(
        "execute_result", {"text/html": "<schedule-player>", "text/plain": "Player()"}
    )
    notebook = new_notebook(
        cells=[
            new_code_cell("print(8)", outputs=outputs),
            new_code_cell("secret", outputs=[said, player], metadata={"tags": ["remove-input"]}),
            new_code_cell("removed", outputs=[said], metadata={"tags": ["remove-cell"]}),
        ]
    )
    shown = [
        "```python\nprint(8)\n```",
        "```text\n8\n```",
        "*Figure: Two trees. Measured & drawn.*",
        "It is *faster*.",
    ]
    assert markdown(notebook) == "\n\n".join(shown) + "\n"


def test_icons_that_no_page_shows_are_dropped(tmp_path: Path) -> None:
    from book_site import icons

    script = tmp_path / icons.SCRIPT
    script.parent.mkdir(parents=True)
    sun, moon = (
        'sun:[512,512,[9728],"f185","M1 2"]',
        '"moon":[384,512,["night",2],"f186",["M1","M2"]]',
    )
    script.write_text(f'a={{monero:[496,512,[],"f3d0","M3"],{sun},x:1}};b={{{moon}}}')
    (tmp_path / "page.html").write_text('<i class="fa-solid fa-sun fa-lg"></i>')
    (tmp_path / "theme.js").write_text('icon("fa-solid fa-moon")')
    style = tmp_path / icons.STYLE
    style.parent.mkdir(parents=True)
    style.write_text(
        '.a{b:c}.fa-monero:before{content:"1"}.fa-day:before,.fa-sun:before{content:"2"}'
    )
    icons.keep_used(SimpleNamespace(outdir=tmp_path), None)
    assert script.read_text() == f"a={{{sun},x:1}};b={{{moon}}}"
    assert style.read_text() == '.a{b:c}.fa-day:before,.fa-sun:before{content:"2"}'
