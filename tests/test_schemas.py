"""What the package writes and reads follows its JSON Schemas, wrong rows do not, and older versions are read."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from collectives import config
from collectives.bench import results
from collectives.machine import Machine, machine, presets, text
from collectives.schemas import VERSION, schema
from command import Capture, run
from places import ROOT, script

REFERENCE = ROOT / "experiments" / "results" / "reference"
MACHINES = ROOT / "src" / "collectives" / "machines"
NAMES = ("grade", "machine", "record", "rows")
# Results whose rows are not those of `bench`.
KINDS = {
    "calibration": "calibrated",
    "asynchronous": "out_of_step",
    "model-parallel": "divided",
    "data-parallel": "trained",
    "overlap": "overlapped",
    "weak-scaling": "overlapped",
}
# Computed rows that one page shows, and no verb prints.
OF_ONE_PAGE = ("rounding-errors",)


def validate(value: Any, name: str, kind: str = "") -> None:
    """By a whole schema, or by one of its ``$defs``; raises jsonschema's ValidationError."""
    wanted = schema(name)
    if kind:
        wanted = {"$defs": wanted["$defs"], "$ref": f"#/$defs/{kind}"}
    Draft202012Validator(wanted).validate(json.loads(json.dumps(value)))


def kind(row: dict[str, Any]) -> str:
    """The one kind that a row is of."""
    kinds = [each["$ref"].rpartition("/")[2] for each in schema("rows")["anyOf"]]
    valid = [each for each in kinds if not _errors(row, each)]
    assert len(valid) == 1, (row, valid)
    return valid[0]


def _errors(row: dict[str, Any], kind: str) -> str:
    try:
        validate(row, "rows", kind)
    except ValidationError as error:
        return error.message
    return ""


def stored(stem: Path) -> list[dict[str, Any]]:
    """Rows from a table, which has null or NaN where a row has no such column."""
    rows = results.read(stem)[0].to_dict("records")
    return [
        {name: plain(value) for name, value in row.items() if not missing(value)} for row in rows
    ]


def plain(value: Any) -> Any:
    """As JSON has it.

    Whole numbers are floats in a column with gaps, and objects of a column have the same names.
    """
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if not missing(each)}
    return value.tolist() if hasattr(value, "tolist") else value


def missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def printed(capsys: Capture, command: str) -> list[dict[str, Any]]:
    code, out, err = run(capsys, *command.split())
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_the_schemas_are_json_schemas(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    assert schema(name)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema(name)["$id"] == f"urn:collectives:{name}:{VERSION}"


def test_every_file_of_the_folder_is_one() -> None:
    assert sorted(
        path.stem for path in (ROOT / "src/collectives/schemas").glob("*.json")
    ) == sorted(NAMES)


def test_the_machine_s_schema_follows_from_the_model() -> None:
    module = script("schemas")
    written = (module.FOLDER / "machine.json").read_text(encoding="utf8")
    assert written == module.text(module.machine()), "run `python .ci/schemas.py`"


@pytest.mark.parametrize(
    "path", [*MACHINES.glob("*.yaml"), *REFERENCE.rglob("*.yaml")], ids=lambda path: path.stem
)
def test_every_machine_s_file_is_valid(path: Path) -> None:
    validate(config.read_yaml(path), "machine")


@pytest.mark.parametrize("name", presets())
def test_a_machine_that_is_written_is_valid(name: str) -> None:
    validate(config.parse_yaml(text(machine(name)).encode(), name), "machine")


NETWORK = {"rate": "25GB/s"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": None}, "network"),
        ({"netwrok": NETWORK}, "netwrok"),
        ({"network": {"rate": 25e9}}, "rate"),
        ({"network": {"rate": "25Gb/s"}}, "rate"),
        ({"network": NETWORK | {"latency": 5e-6}}, "latency"),
        ({"network": NETWORK | {"latency": "5"}}, "latency"),
        ({"network": NETWORK | {"overhead": -0.5}}, "overhead"),
        ({"ranks_per_node": 0}, "ranks_per_node"),
        ({"ranks_per_node": "8"}, "ranks_per_node"),
        ({"levels": [{"name": "rack"}]}, "nodes"),
        ({"protocols": [{"name": "LL", "up_to": "64Q"}]}, "up_to"),
        ({"protocols": [{"name": "LL", "share": 0}]}, "share"),
        ({"slower": {0: 0.5}}, "slower"),
        ({"version": VERSION + 1}, "schema version"),
        ({"version": "1"}, "schema version"),
    ],
    ids=str,
)
def test_schema_and_reader_refuse_the_same(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    wrong = {"name": "mine", "network": NETWORK} | change
    with pytest.raises(ValidationError):
        validate(wrong, "machine")
    (tmp_path / "mine.yaml").write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match=message):
        machine(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize("latency", ["0.47us", "400 µs", ".5ms", "2. s", 0, 0.0])
@pytest.mark.parametrize("up_to", ["64K", "1.5KiB", "4", "4 b", 65536])
def test_schema_and_reader_accept_the_same(latency: Any, up_to: Any, tmp_path: Path) -> None:
    right = {
        "name": "mine",
        "network": NETWORK | {"latency": latency},
        "protocols": [{"name": "LL", "up_to": up_to}],
    }
    validate(right, "machine")
    (tmp_path / "mine.yaml").write_text(json.dumps(right))
    assert machine(str(tmp_path / "mine.yaml")).protocols[0].up_to


@pytest.mark.parametrize("version", range(VERSION + 1))
def test_a_machine_of_each_version_is_read(version: int, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        json.dumps({"version": version, "name": "mine", "network": NETWORK})
    )
    assert machine(str(tmp_path / "mine.yaml")) == Machine.model_validate(
        {"name": "mine", "network": NETWORK}
    )


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("path", sorted(REFERENCE.rglob("*.parquet")), ids=lambda path: path.stem)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.extended), 10])
def test_every_committed_row_and_record_is_valid(path: Path, every: int) -> None:
    if path.parent.name == "computed":
        has_schema, wanted = path.stem not in OF_ONE_PAGE, "simulated"
    else:
        has_schema, wanted = True, KINDS.get(path.stem, "measured")
    assert not has_schema or {kind(row) for row in stored(path.with_suffix(""))[::every]} == {
        wanted
    }
    record = json.loads(path.with_suffix(".json").read_text())
    validate(record, "record")
    validate(results.read(path.with_suffix(""))[1], "record")


@pytest.mark.parametrize(
    "runs", ["slow-motion slurm-cpu", "loopback/all-reduce loopback/all-reduce-tcp"]
)
def test_what_compare_prints_is_valid(capsys: Capture, runs: str) -> None:
    """A setting is a key only where a run has it in two ways."""
    assert {kind(row) for row in printed(capsys, f"compare {runs} --json")} == {"compared"}


@pytest.mark.parametrize("path", sorted(REFERENCE.rglob("*.jsonl")), ids=lambda path: path.stem)
def test_every_committed_line_is_valid(path: Path) -> None:
    assert {kind(json.loads(line)) for line in path.read_text().splitlines()} == {"checked"}


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("list -p 5 --json", "listed"),
        ("verify all_reduce ring -p 5 --json", "verified"),
        pytest.param(
            "verify --all --max-ranks 1 --json", "verified_all", marks=pytest.mark.integration
        ),
        pytest.param(
            "simulate broadcast two_tree -p 12 --machine summit --json",
            "simulated",
            marks=pytest.mark.integration,
        ),
        ("bound all_gather --machine dgx1 --json", "bounded"),
        ("backends --json", "backend"),
        pytest.param(
            "bench all_reduce ring auto --machine textbook -p 2 --bytes 0 64 --repetitions 2 --json",
            "measured",
            marks=pytest.mark.integration,
        ),
    ],
)
def test_what_a_verb_prints_is_valid(capsys: Capture, command: str, wanted: str) -> None:
    rows = printed(capsys, command)
    assert {kind(row) for row in rows} == {wanted}
    known = {name for name in schema("rows")["$defs"][wanted]["properties"] if name != "error"}
    assert {name for row in rows for name in row} == known, (
        "a key that the schema describes, and no other"
    )


MEASURED = next(iter(stored(REFERENCE / "slow-motion" / "two-trees-broadcast")))


@pytest.mark.parametrize(
    "change",
    [
        *({name: None} for name in ("wrong", "samples", "algorithm", "ranks", "busbw")),
        {"collective": "allreduce"},
        {"ranks": 0},
        {"bytes": 4.5},
        {"bytes": "4"},
        {"samples": []},
        {"samples": [1.0, -1.0]},
        {"median_us": "5us"},
        {"op": "mean"},
        {"wrong": -1},
        {"auto": 1},
        {"error": "rank 3 failed"},
    ],
    ids=str,
)
def test_a_wrong_row_is_refused(change: dict[str, Any]) -> None:
    assert kind(MEASURED) == "measured"
    with pytest.raises(ValidationError):
        validate(MEASURED | change, "rows")
    (name,) = change
    without = {of: value for of, value in MEASURED.items() if of != name}
    if name in schema("rows")["$defs"]["measured"]["required"]:
        with pytest.raises(ValidationError):
            validate(without, "rows")


def test_a_failed_row_is_one() -> None:
    names = ("collective", "algorithm", "backend", "where", "ranks", "bytes", "dtype", "op")
    failed = {name: MEASURED[name] for name in names} | {"samples": [], "error": "rank 3 failed"}
    assert kind(failed) == "failed"


ROWS = [{"bytes": 8, "one_way": 5e-3, "each": 1e-5, "fit": 5e-3, "off": 0.0}]


def test_a_result_says_its_version(tmp_path: Path) -> None:
    results.write(tmp_path / "rows", ROWS, {"environment": []})
    written = json.loads((tmp_path / "rows.json").read_text())
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", written.pop("date"))
    assert written == {"version": VERSION, "environment": []}
    assert results.read(tmp_path / "rows")[1].items() >= written.items()


@pytest.mark.parametrize("version", [{}, {"version": 0}, {"version": VERSION}], ids=str)
def test_a_result_of_each_version_is_read(version: dict[str, int], tmp_path: Path) -> None:
    results.write(tmp_path / "rows", ROWS, {})
    (tmp_path / "rows.json").write_text(json.dumps({"environment": []} | version))
    rows, record = results.read(tmp_path / "rows")
    assert rows.to_dict("records") == ROWS
    assert record == {"version": VERSION, "environment": []}


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (VERSION + 1, "got 2, expected 0 to 1; a newer release of collectives reads it"),
        (-1, "got -1, expected 0 to 1$"),
        (True, "got True, expected"),
        ("1", "got '1', expected"),
        (None, "got None, expected"),
    ],
)
def test_a_result_of_no_known_version_is_refused(
    version: Any, message: str, tmp_path: Path
) -> None:
    results.write(tmp_path / "rows", ROWS, {"version": version})
    with pytest.raises(ValueError, match=rf"rows.json: schema version: {message}"):
        results.read(tmp_path / "rows")
