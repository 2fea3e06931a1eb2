"""The parts of chapters/_ext/book_site, without a build."""

import gc
import re
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from docutils.core import publish_doctree
from nbformat.v4 import new_code_cell, new_notebook, new_output

from places import ROOT, script


@pytest.fixture(autouse=True)
def _extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "chapters" / "_ext"))


def test_a_figure_becomes_one_file_with_fewer_digits(tmp_path: Path) -> None:
    from book_site.pictures import extract

    one = "PHN2ZyBkPSJNIDEuMjM0NTYgMiIgdD0ic2NhbGUoMC4wMTU2MjUpIi8+"  # <svg d="M 1.23456 2" t="scale(0.015625)"/>
    body = f'<img src="data:image/svg+xml;base64,{one}">'
    context: dict[str, Any] = {"body": body + body, "pathto": lambda name, _: f"../{name}"}
    extract(SimpleNamespace(outdir=tmp_path), "chapters/x", "page.html", context, object())
    (written,) = (tmp_path / "_images").iterdir()
    assert written.read_bytes() == b'<svg d="M1.2 2" t="scale(0.015625)"/>'
    assert context["body"] == f'<img src="../_images/{written.name}">' * 2


def test_what_is_kept_of_mathjax_is_there(tmp_path: Path) -> None:
    from book_site import mathjax

    mathjax.install(SimpleNamespace(outdir=tmp_path), None)
    assert not [name for name in mathjax.KEPT if not (tmp_path / "_static" / "mathjax" / name).exists()]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 2e6


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("One. Two.", "One. Two."),
        (
            "One sentence that is long enough to say what the page is about. " + "more " * 60,
            "One sentence that is long enough to say what the page is about.",
        ),
        ("One? " + "more " * 60, "One? " + "more " * 38 + "more …"),
        ("word " * 60, "word " * 39 + "word …"),
    ],
)
def test_a_description_ends_with_a_sentence_or_a_word(text: str, short: str) -> None:
    from book_site.head import shortened

    assert shortened(text) == short


def test_the_description_is_the_first_paragraph_of_the_page_itself() -> None:
    from book_site.head import first_paragraph

    note = "Of a box around the page's beginning, which is long enough, too, and comes first."
    own = "Every rank holds a buffer,\nand at the end every rank holds the sum of all buffers."
    page = publish_doctree(f"Title\n=====\n\n.. note:: {note}\n\nShort.\n\n{own}\n")
    assert first_paragraph(page) == own.replace("\n", " ")


def test_the_card_is_named_if_the_site_has_an_address() -> None:
    from book_site.head import CARD, links

    assert links("https://example.org/book", "chapters/x.html")["og:url"] == "https://example.org/book/chapters/x.html"
    assert links("https://example.org/book/", "x")["og:image"] == f"https://example.org/book/{CARD}"
    assert (ROOT / "chapters" / CARD).read_bytes()[16:24] == (1200).to_bytes(4, "big") + (630).to_bytes(4, "big")


def test_the_page_that_leads_to_the_first_one_asks_for_nothing() -> None:
    from book_site.front import leading_to

    config = SimpleNamespace(language="en", html_title="One & All")
    page = leading_to("chapters/preface.html", config)
    assert 'content="0; url=chapters/preface.html"' in page
    assert '<link rel="icon" href="data:,">' in page
    assert "<title>One &amp; All</title>" in page


@pytest.mark.parametrize("address", ["", "https://github.com/example/book"])
def test_one_line_turns_on_links_to_the_repository_and_is_in_commands(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    from book_site import repository

    given = {"repository-code": address, "url": "https://example.org"} if address else {}
    monkeypatch.setattr(repository, "citation", lambda: given)
    config = SimpleNamespace(html_theme_options={}, html_baseurl="")
    repository.configure(None, config)
    assert {config.html_theme_options[each] for each in repository.BUTTONS} == {bool(address)}
    assert bool(config.html_baseurl) == bool(address)
    source = ["git clone REPOSITORY book; REPOSITORY"]
    repository.name(SimpleNamespace(config=config), "chapters/x", source)
    assert source == [f"git clone {address or 'REPOSITORY'} book; REPOSITORY"]


def test_every_page_writes_the_address_in_the_same_way() -> None:
    from book_site.repository import COMMAND, UNKNOWN

    commands = [
        line
        for page in (ROOT / "chapters").glob("*.md")
        for line in re.findall("^git clone .*", page.read_text(), re.M)
    ]
    assert len(commands) >= 3
    assert not [line for line in commands if not line.startswith(COMMAND.format(UNKNOWN))]


def test_an_executed_notebook_has_no_source_to_edit() -> None:
    from book_site.repository import hide_edit

    full = {"type": "javascript", "label": "fullscreen-button"}
    edit, issue = {"label": "source-edit-button"}, {"label": "source-issues-button"}
    for page, left in (("chapters/x", [edit, issue]), ("experiments/results/quick/x", [issue])):
        context = {"header_buttons": [full, {"type": "group", "buttons": [edit, issue]}]}
        hide_edit(None, page, "page.html", context, None)
        assert context == {"header_buttons": [full, {"type": "group", "buttons": left}]}


def test_a_download_has_no_figure_twice() -> None:
    from book_site.downloads import with_figures_once

    html = '<figure class="drawn"><img class="only-light" src="a"><img class="only-dark" src="b"></figure>'
    output = new_output("execute_result", {"text/html": html, "text/plain": "Picture(…)"})
    notebook = new_notebook(cells=[new_code_cell("figure", outputs=[output], execution_count=3)])
    (shown,) = with_figures_once(notebook).cells[0].outputs
    assert shown.data == {"text/html": '<figure class="drawn"><img class="only-light" src="a"></figure>'}
    nbformat.validate(notebook)


MYST = """---
kernelspec: x
---
(label)=
# Trees

See {doc}`/chapters/ring`, {doc}`the ring <ring>`, {ref}`label` and {term}`trees <tree>` {cite:p}`one2011`.

````{dropdown} Answer 1
```{glue:md} tree-1
:format: commonmark
```
````

```{literalinclude} code.py
:language: python
:pyobject: two
```

```{literalinclude} link.yaml
:language: yaml
:start-at: "rate: \\x32"
```
"""
PLAIN = """# Trees

See Ring, the ring, Labelled and trees (one2011).

**Answer 1**

Twice as fast.

```python
def two():
    return 2
```

```yaml
rate: 25 GB/s
```"""


def test_a_page_in_plain_markdown(tmp_path: Path) -> None:
    from book_site.plain import Page

    (tmp_path / "code.py").write_text("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    (tmp_path / "link.yaml").write_text("name: link\nrate: 25 GB/s\n")
    titles = {"chapters/ring": "Ring", "ring": "Ring", "label": "Labelled"}
    page = Page(tmp_path, titles, {"tree-1": "Twice as fast."}, SimpleNamespace(source_encoding="utf8"))
    assert page.plain(MYST) == PLAIN


@pytest.mark.parametrize(
    "path",
    [*ROOT.glob("chapters/*.md"), *ROOT.glob("assignments/*/handout.md")],
    ids=lambda path: path.as_posix()[-24:],
)
def test_every_page_can_be_written_in_plain_markdown(path: Path) -> None:
    from book_site.plain import Page

    page = Page(path.parent, {}, {}, SimpleNamespace(source_encoding="utf8"))
    text = page.plain(script("gates").CELL.sub("", path.read_text(encoding="utf8")))
    assert text.startswith("# ")
    assert not re.findall(r"\{(?:doc|ref|term|download|cite:[pt])\}`.*|^[`:]{3,}\{.*", text, re.MULTILINE)


def test_a_notebook_as_markdown_has_what_its_page_shows() -> None:
    from book_site.plain import markdown

    figure = '<figure class="drawn"><img alt="Two trees."><figcaption>Measured &amp; drawn.</figcaption></figure>'
    outputs = [new_output("stream", text="8\n"), new_output("execute_result", {"text/html": figure})]
    said = new_output("execute_result", {"text/markdown": "It is *faster*.", "text/plain": "<IPython.core.display.M>"})
    player = new_output("execute_result", {"text/html": "<schedule-player>", "text/plain": "Player()"})
    notebook = new_notebook(
        cells=[
            new_code_cell("print(8)", outputs=outputs),
            new_code_cell("secret", outputs=[said, player], metadata={"tags": ["remove-input"]}),
            new_code_cell("removed", outputs=[said], metadata={"tags": ["remove-cell"]}),
        ]
    )
    shown = ["```python\nprint(8)\n```", "```text\n8\n```", "*Figure: Two trees. Measured & drawn.*", "It is *faster*."]
    assert markdown(notebook) == "\n\n".join(shown) + "\n"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("<tr><th></th><th>time</th></tr>", "<tr><td></td><th>time</th></tr>"),
        ('<th class="head"><p></p></th>', "<td></td>"),
        ('<div class="citation" role="doc-biblioentry">', '<div class="citation" role="listitem">'),
    ],
)
def test_what_a_screen_reader_reads_is_repaired(wrong: str, right: str) -> None:
    from book_site.access import repair

    context = {"body": wrong}
    repair(None, "x", "page.html", context, object())
    assert context["body"] == right


def test_a_mark_stays_with_its_formula() -> None:
    from book_site.commands import keep_words

    formula = '<span class="math notranslate nohighlight">\\(p\\)</span>'
    context = {"body": f"<p>for {formula}. Of {formula} ranks ({formula} or more)</p>"}
    keep_words(None, "x", "page.html", context, object())
    whole = '<span class="command-word">{}</span>'.format
    begins, ends = whole(f"({formula}"), whole(f"{formula}.")
    assert context["body"] == f"<p>for {ends} Of {formula} ranks {begins} or more)</p>"


def test_the_words_of_a_command_and_of_a_title_stay_whole() -> None:
    from book_site.commands import keep_words

    before, after = '<div class="highlight-bash notranslate"><div class="highlight"><pre>', "</pre></div></div>"
    command = f'run<span class="w"> </span>--ranks<span class="w"> </span>4<span class="c1"># {"-" * 40}</span>'
    option = '<code><span class="pre">--seed</span></code>'
    context = {"body": f"<h1>To Two-Tree</h1><p>a-b</p>{before}{command}{after}<pre>--no</pre>{option}"}
    keep_words(None, "x", "page.html", context, object())
    whole = command.replace("--ranks", '<span class="command-word">--ranks</span>')
    kept = option.replace("pre", "pre command-word")
    title = '<h1>To <span class="command-word">Two-Tree</span></h1>'
    assert context["body"] == f"{title}<p>a-b</p>{before}{whole}{after}<pre>--no</pre>{kept}"


# An extension asks every living object for its class, also one that warns because it is deprecated.
@pytest.mark.filterwarnings("ignore:.torch.distributed.reduce_op. is deprecated:FutureWarning")
@pytest.mark.integration  # seconds
def test_pages_are_read_beside_each_other_by_every_extension_of_the_book(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where one did not allow it Sphinx would warn, and read them one after the other."""
    import os

    from jupyter_book.config import get_final_config
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace

    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    # That extension fails on a weak reference whose object is gone; tests before this one may leave some.
    living = [each for each in gc.get_objects() if type(each) not in weakref.ProxyTypes]
    monkeypatch.setattr(gc, "get_objects", lambda: living)
    given = {"external_toc_path": str(ROOT / "_toc.yml"), "latex_individualpages": False}
    config, _ = get_final_config(user_yaml=ROOT / "_config.yml", cli_config=given, sourcedir=ROOT)
    with docutils_namespace():
        app = Sphinx(ROOT, None, tmp_path, tmp_path, "html", config, status=None, warning=None)
    assert app.parallel == 4
    assert app.is_parallel_allowed("read")
    assert app.is_parallel_allowed("write")


def test_icons_that_no_page_shows_are_dropped(tmp_path: Path) -> None:
    from book_site import icons

    script = tmp_path / icons.SCRIPT
    script.parent.mkdir(parents=True)
    sun, moon = 'sun:[512,512,[9728],"f185","M1 2"]', '"moon":[384,512,["night",2],"f186",["M1","M2"]]'
    script.write_text(f'a={{monero:[496,512,[],"f3d0","M3"],{sun},x:1}};b={{{moon}}}')
    (tmp_path / "page.html").write_text('<i class="fa-solid fa-sun fa-lg"></i>')
    (tmp_path / "theme.js").write_text('icon("fa-solid fa-moon")')
    style = tmp_path / icons.STYLE
    style.parent.mkdir(parents=True)
    style.write_text('.a{b:c}.fa-monero:before{content:"1"}.fa-day:before,.fa-sun:before{content:"2"}')
    icons.keep_used(SimpleNamespace(outdir=tmp_path), None)
    assert script.read_text() == f"a={{{sun},x:1}};b={{{moon}}}"
    assert style.read_text() == '.a{b:c}.fa-day:before,.fa-sun:before{content:"2"}'
