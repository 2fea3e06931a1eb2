"""The reference has every public name, verb and schema; its examples are true."""

import ast
import doctest
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from test_site import SITE, needs_site, parse

import collectives
from collectives.cli import verbs
from collectives.schemas import schema
from collectives_book import EXPERIMENTS, load
from collectives_book.schema_tables import fields, takes
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
        assert default is None or ast.literal_eval(default) == field.get_default(call_default_factory=True)


@pytest.mark.extended
@needs_site
@pytest.mark.parametrize("name", [*collectives.__all__, *PROMISED])
def test_a_public_name_has_its_place_on_the_built_page(name: str) -> None:
    (found,) = parse(SITE / "chapters" / "reference-api.html").select(f'[id="collectives.{name}"]')
    described = found.find_next_sibling("dd")
    assert described is not None
    assert described.get_text().strip()


def test_examples_of_the_page() -> None:
    failed, tried = doctest.testfile(str(CHAPTERS / "reference-api.md"), module_relative=False)
    assert tried
    assert not failed


def test_every_verb_has_a_section_with_its_help() -> None:
    sections = re.findall(r"^### (\S+)\n.*?\nusage\(\"(\S+)\"\)", text("reference-cli"), re.MULTILINE | re.DOTALL)
    assert sorted(sections) == sorted((verb, verb) for verb in verbs())


@pytest.mark.parametrize("path", sorted((ROOT / "src/collectives/schemas").glob("*.json")), ids=lambda path: path.stem)
def test_every_schema_is_on_the_page(path: Path) -> None:
    page = text("reference-formats")
    assert f'objects("{path.stem}")' in page or f"objects('{path.stem}')" in page


def test_a_table_has_every_field_and_says_what_is_needed() -> None:
    lines = fields(schema("grade")).splitlines()[2:]
    assert [line.split("`")[1] for line in lines] == list(schema("grade")["properties"])
    optional = [line.split("`")[1] for line in lines if line.split("|")[3].strip() != "yes"]
    assert optional == ["secret"]  # grades of earlier releases have none


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_parameter_s_values_have_words(name: str) -> None:
    model = load(name).Parameters.model_json_schema()
    Draft202012Validator.check_schema(model)
    assert all(takes(field, model.get("$defs", {})) for field in model["properties"].values())
