"""Horovod's build: what is missing or fails is said in a line and breaks nothing, and nothing half done looks done."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from places import script


@pytest.fixture(name="script")
def build_horovod() -> ModuleType:
    return script("build_horovod")


def make_wheel(scratch: Path, _: Path) -> None:
    (scratch / "wheel").mkdir()
    (scratch / "wheel" / "horovod-0.28.1-py3-none-any.whl").write_text("a wheel")


def never(*_: Path) -> None:
    raise AssertionError("built again")


def fail(_: Path, log: Path) -> None:
    log.write_text("error: C++17 or later compatible compiler is required")
    raise subprocess.CalledProcessError(1, "pip")


def test_a_wheel_is_built_once(script: ModuleType, tmp_path: Path) -> None:
    built = script.wheel(tmp_path / "cache", make_wheel)
    assert built.read_text() == "a wheel"
    assert script.wheel(tmp_path / "cache", never) == built
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [script.key()]


def test_the_key_names_all_that_a_wheel_depends_on(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    assert "0.28.1" in script.key()
    assert torch.__version__ in script.key()
    assert f"cpython-{sys.version_info.major}{sys.version_info.minor}" in script.key()
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    built_with: dict[str, str] = {}
    monkeypatch.setattr(script.subprocess, "run", lambda *_, env, **__: built_with.update(env))
    script.pip(tmp_path / "log", "wheel")
    assert built_with["HOROVOD_WITH_GLOO"] == "1"
    assert "HOROVOD_GPU_OPERATIONS" not in built_with


def test_a_failed_build_leaves_its_log_and_is_not_tried_again(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(script.BuildError, match=r"the build failed \(CalledProcessError\); see .*\.log"):
        script.wheel(tmp_path, fail)
    (log,) = tmp_path.iterdir()
    assert "C++17" in log.read_text()
    with pytest.raises(script.BuildError, match=r"failed before; remove .* to try again"):
        script.wheel(tmp_path, never)
    log.unlink()
    assert script.wheel(tmp_path, make_wheel).exists()


def test_a_build_that_is_cut_off_leaves_nothing(script: ModuleType, tmp_path: Path) -> None:
    def cut_off(scratch: Path, log: Path) -> None:
        make_wheel(scratch, log)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        script.wheel(tmp_path, cut_off)
    assert list(tmp_path.iterdir()) == []


def test_what_is_edited_is_there_once(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "CMakeLists.txt"
    path.write_text("project(x)\n    set(CMAKE_CXX_STANDARD 14)\n")
    script.edit(path, [script.STANDARD])
    assert path.read_text() == "project(x)\n    set(CMAKE_CXX_STANDARD 20)\n"
    with pytest.raises(script.BuildError, match=r"CMAKE_CXX_STANDARD .* found 0 times, expected once"):
        script.edit(path, [script.STANDARD])


def test_without_tools_it_says_what_to_install_and_is_no_error(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "is_installed", lambda: False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    script.main()
    said = capsys.readouterr().out
    assert "no Horovod: a C++ compiler and cmake and make not found (Debian, Ubuntu: apt-get install" in said
    assert list(tmp_path.iterdir()) == []
