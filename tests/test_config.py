"""YAML is read as plain values, or refused at once, in one line with the file's name."""

from pathlib import Path

import pytest

from collectives.config import MAX_BYTES, parse_yaml, read_yaml

BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: [1, 2.5, x, true, null]", {"a": [1, 2.5, "x", True, None]}),
        ("2020-01-01", "2020-01-01"),
        ("2020-99-99", "2020-99-99"),
        ("", None),
        ("\ufeffa: 1", {"a": 1}),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("a: =", {"a": "="}),
    ],
)
def test_values_are_plain(text: str, value: object) -> None:
    assert parse_yaml(text, "x") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "invalid YAML: line 2, column 8: got an alias, expected the value itself"),
        (
            "a: !!python/object/apply:os.system [x]",
            "line 1, column 4: could not determine a constructor for the tag",
        ),
        ("[" * 30_000, "got too many levels, expected fewer"),
        ("- " * 30_000, "got too many levels, expected fewer"),
        ("{a: " * 16_000, "got too many levels, expected fewer"),
        ("a: " * 5, "invalid YAML: line 1, column 5: mapping values are not allowed here"),
        ("\x00", "invalid YAML: unacceptable character"),
        (b"\xff\xfe\x00", "invalid YAML: 'utf-8' codec can't decode"),
        ("\ud800", "invalid YAML: 'utf-8' codec can't decode"),
        ("9" * 5000, "invalid YAML: Exceeds the limit"),
        ("{[1]: 2}", "found unhashable key"),
        ("a: 1\n---\nb: 2", "invalid YAML: line 2, column 1: but found another document"),
    ],
)
def test_what_is_refused_is_said_in_one_line(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf8", "surrogatepass"))
    with pytest.raises(ValueError, match=r"mine\.yaml") as caught:
        read_yaml(path)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500
    with pytest.raises(ValueError, match=r"^a name"):
        parse_yaml(text, "a name")


def test_a_large_file_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(1 << 40)  # nothing of it is on the disk
    with pytest.raises(
        ValueError, match=r"large\.yaml: got more than 64 KiB of YAML, expected less"
    ):
        read_yaml(tmp_path / "large.yaml")
    assert len(parse_yaml("x" * MAX_BYTES, "x")) == MAX_BYTES


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*none\.yaml: No such file or directory"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ValueError, match=r"cannot read .*: Is a directory"):
        read_yaml(tmp_path)
