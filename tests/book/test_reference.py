"""The reference has every public name, verb and schema, its examples are true, and what pages cite is in its list."""

import ast
import doctest
import re

from pybtex.database import parse_file

import collectives
from collectives.cli import verbs
from places import ROOT

CHAPTERS = ROOT / "chapters"
# Objects of autodoc: what is described, by its full name.
DESCRIBED = re.compile(r"^\.\. (?:auto\w+|py:data):: ([\w.]+)", re.MULTILINE)
# Promised beside `collectives.__all__` ("What stays compatible").
PROMISED = ("schemas.schema", "torch_backend.Options", "torch_backend.hook")


def text(page: str) -> str:
    return (CHAPTERS / f"{page}.md").read_text(encoding="utf8")


def test_every_public_name_is_described_once() -> None:
    described = DESCRIBED.findall(text("reference-api"))
    assert len(set(described)) == len(described)
    assert {f"collectives.{name}" for name in (*collectives.__all__, *PROMISED)} <= set(described)


def test_the_signature_of_a_machine_that_is_written_out_has_its_fields_and_defaults() -> None:
    """autodoc writes FieldInfo(...) in place of a default."""
    (signature,) = re.findall(r"autoclass:: collectives\.Machine(\(.*\))", text("reference-api"))
    (function,) = ast.parse(f"def machine{signature}: pass").body
    assert isinstance(function, ast.FunctionDef)
    fields = collectives.Machine.model_fields
    assert [each.arg for each in function.args.kwonlyargs] == list(fields)
    for field, default in zip(fields.values(), function.args.kw_defaults, strict=True):
        assert field.is_required() == (default is None)
        assert default is None or ast.literal_eval(default) == field.get_default(
            call_default_factory=True
        )


def test_examples_of_the_page() -> None:
    failed, tried = doctest.testfile(str(CHAPTERS / "reference-api.md"), module_relative=False)
    assert tried
    assert not failed


def test_every_verb_and_every_schema_has_a_section() -> None:
    sections = re.findall(
        r"^### (\S+)\n.*?\nusage\(\"(\S+)\"\)", text("reference-cli"), re.MULTILINE | re.DOTALL
    )
    assert sorted(sections) == sorted((verb, verb) for verb in verbs())
    shown = re.findall(r"objects\([\"'](\w+)[\"']\)", text("reference-formats"))
    assert {path.stem for path in (ROOT / "src/collectives/schemas").glob("*.json")} <= {*shown}


def test_everything_cited_is_listed_and_can_be_found_again() -> None:
    pages = "".join(page.read_text(encoding="utf8") for page in CHAPTERS.glob("*.md"))
    cited = {
        key for keys in re.findall(r"\{cite:[a-z]+\}`([^`]+)`", pages) for key in keys.split(",")
    }
    entries = parse_file(CHAPTERS / "references.bib").entries
    assert cited == {*entries}
    moving = re.compile(r"/(?:blob|tree|raw)/(?:master|main|HEAD)/")  # of a branch, which changes
    assert not [key for key, each in entries.items() if moving.search(each.fields.get("url", ""))]
    assert not [
        key for key, each in entries.items() if each.type == "misc" and "url" not in each.fields
    ]
