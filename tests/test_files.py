"""Files are written whole or not at all, also by two processes of one number."""

import os
from pathlib import Path

import pytest

from collectives.files import replace


def test_two_writers_of_one_name_and_one_process_number_do_not_mix(tmp_path: Path) -> None:
    """Two hosts that share a folder may have processes of one number."""
    path = tmp_path / "rows"

    def write(partial: Path) -> None:
        with partial.open("w") as file:
            file.write("first")
            replace(path, lambda other: other.write_text("second"))
            assert path.read_text() == "second"
            file.write(" is whole")

    replace(path, write)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("rows", "first is whole")]


def test_what_is_written_can_be_read_by_whom_the_mask_lets(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace(tmp_path / "rows", lambda partial: partial.write_text("x"))
    finally:
        os.umask(before)
    assert (tmp_path / "rows").stat().st_mode & 0o777 == 0o640


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("before")

    def half(partial: Path) -> None:
        partial.write_text("half")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        replace(tmp_path / "rows", half)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("rows", "before")]
