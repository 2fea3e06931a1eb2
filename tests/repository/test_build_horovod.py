"""Horovod's build: what is missing or fails is said in a line and breaks nothing, and nothing half done looks done."""

import subprocess
from pathlib import Path

import pytest

from places import script

BUILD = script("build_horovod")
NAME = "horovod-for-a-torch"


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
        BUILD.wheel(tmp_path / "cache", NAME, cut_off)
    assert list((tmp_path / "cache").iterdir()) == []
    built = BUILD.wheel(tmp_path / "cache", NAME, make_wheel)
    assert built.read_text() == "a wheel"
    assert BUILD.wheel(tmp_path / "cache", NAME, fail) == built
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [NAME]


def test_a_wheel_that_was_removed_is_built_again(tmp_path: Path) -> None:
    built = BUILD.wheel(tmp_path, NAME, make_wheel)
    built.unlink()
    assert BUILD.wheel(tmp_path, NAME, make_wheel).read_text() == "a wheel"
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_failed_build_leaves_its_log_and_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(
        BUILD.BuildError, match=r"the build failed \(CalledProcessError\); see .*\.log"
    ):
        BUILD.wheel(tmp_path, NAME, fail)
    (log,) = tmp_path.iterdir()
    assert "C++17" in log.read_text()
    with pytest.raises(BUILD.BuildError, match=r"failed before; remove .* to try again"):
        BUILD.wheel(tmp_path, NAME, make_wheel)
    log.unlink()
    assert BUILD.wheel(tmp_path, NAME, make_wheel).exists()


def test_without_tools_it_says_what_to_install_and_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(BUILD, "is_installed", lambda _: False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert BUILD.main() == 0
    said = capsys.readouterr().out
    assert (
        "no Horovod: a C++ compiler and cmake and make not found (Debian, Ubuntu: apt-get install"
        in said
    )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """NVIDIA's wheels beside torch, as torch's build with CUDA brings them; the compiler's come from `pip`."""
    wheels = tmp_path / "site" / "nvidia"
    write(wheels / "nccl", "include/nccl.h", "lib/libnccl.so.2")
    write(wheels / "cu13", "include/cuda_runtime.h", "lib/libcudart.so.13")
    monkeypatch.setattr(BUILD, "nvidia", lambda: wheels)
    monkeypatch.setattr(BUILD, "is_installed", lambda _: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def pip(log: Path, options: dict[str, str], *arguments: str | Path) -> None:
        assert "--require-hashes" in arguments
        target = Path(arguments[arguments.index("--target") + 1])
        write(target / "nvidia" / "cu13", "bin/nvcc", "include/crt/host_config.h")

    monkeypatch.setattr(BUILD, "pip", pip)
    return wheels


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_toolkit_of_links_has_what_a_compiler_looks_for(nvidia: Path, tmp_path: Path) -> None:
    """Programs and headers of all wheels in one tree, libraries under names without versions, and folders no links."""
    home = BUILD.toolkit(tmp_path, tmp_path / "log")
    for name in ("bin/nvcc", "include/crt/host_config.h", "include/cuda_runtime.h"):
        assert (home / name).read_text() == name
        assert not (home / name).parent.is_symlink()
    assert (home / "lib64" / "libnccl.so").samefile(nvidia / "nccl/lib/libnccl.so.2")
    assert (home / "lib64" / "libcudart.so").samefile(nvidia / "cu13/lib/libcudart.so.13")
    assert (home / "lib").samefile(home / "lib64")


@pytest.mark.parametrize("missing", ["nccl/include/nccl.h", "cu13/include/cuda_runtime.h"])
def test_without_a_torch_with_cuda_a_build_with_nccl_says_how_to_get_one(
    missing: str, nvidia: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (nvidia / missing).unlink()
    assert BUILD.main(["--nccl"]) == 1
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "make horovod-nccl VENV=.venv-cuda TORCH=cuda" in said
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("nvidia")
def test_without_room_for_a_compiler_nothing_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(BUILD, "NVCC_BYTES", 1 << 60)
    assert BUILD.main(["--nccl"]) == 1
    assert "expected 1,099,511,627,776 MB" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("nvidia")
def test_a_wheel_with_nccl_has_a_place_of_its_own_and_is_not_replaced_by_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed: list[Path] = []
    monkeypatch.setattr(BUILD, "build", make_wheel)
    monkeypatch.setattr(BUILD, "build_with_nccl", make_wheel)
    monkeypatch.setattr(BUILD, "install", installed.append)
    monkeypatch.setattr(BUILD, "is_installed", lambda name: name in map(folder, installed))
    assert BUILD.main() == BUILD.main(["--nccl"]) == BUILD.main() == 0
    assert [folder(path) for path in installed] == [BUILD.key(), BUILD.with_nccl()]


def folder(path: Path) -> str:
    return path.parent.name
