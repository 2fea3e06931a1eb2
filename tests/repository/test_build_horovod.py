"""Horovod's build: what is missing or fails is said in a line and breaks nothing, and nothing half done looks done."""

import subprocess
from pathlib import Path

import pytest

from places import script

BUILD = script("build_horovod")


def make_wheel(scratch: Path, _: Path) -> None:
    (scratch / "wheel").mkdir()
    (scratch / "wheel" / "horovod-0.28.1-py3-none-any.whl").write_text("a wheel")


def fail(_: Path, log: Path) -> None:
    log.write_text("error: C++17 or later compatible compiler is required")
    raise subprocess.CalledProcessError(1, "pip")


def cut_off(scratch: Path, log: Path) -> None:
    make_wheel(scratch, log)
    raise KeyboardInterrupt


def test_a_wheel_is_built_once_and_a_build_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        BUILD.wheel(tmp_path / "cache", cut_off)
    assert list((tmp_path / "cache").iterdir()) == []
    built = BUILD.wheel(tmp_path / "cache", make_wheel)
    assert built.read_text() == "a wheel"
    assert BUILD.wheel(tmp_path / "cache", fail) == built
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [BUILD.key()]


def test_a_failed_build_leaves_its_log_and_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(
        BUILD.BuildError, match=r"the build failed \(CalledProcessError\); see .*\.log"
    ):
        BUILD.wheel(tmp_path, fail)
    (log,) = tmp_path.iterdir()
    assert "C++17" in log.read_text()
    with pytest.raises(BUILD.BuildError, match=r"failed before; remove .* to try again"):
        BUILD.wheel(tmp_path, make_wheel)
    log.unlink()
    assert BUILD.wheel(tmp_path, make_wheel).exists()


def test_without_tools_it_says_what_to_install_and_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BUILD, "is_installed", lambda: False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    BUILD.main()
    said = capsys.readouterr().out
    assert (
        "no Horovod: a C++ compiler and cmake and make not found (Debian, Ubuntu: apt-get install"
        in said
    )
    assert list(tmp_path.iterdir()) == []
