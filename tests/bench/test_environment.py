"""What a record says of its environment; the fingerprint of the code changes with what the code does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from collectives.bench import Row, environment, task

CODE = '''"""A module."""
VALUE = 3  # a comment


class Thing:
    """A class."""

    def act(self) -> str:
        """A function."""
        return f"no docstring {VALUE}"
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "module.py").write_text(CODE)
    (tmp_path / "empty.py").write_text('"""Nothing but this."""\n')
    (tmp_path / "machine.yaml").write_text("name: x\n")
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "bench" / "environment.py"))
    return tmp_path


def replaced(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new))


def added(name: str) -> Callable[[Path], object]:
    def add(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x = 1\n")

    return add


@pytest.mark.parametrize(
    "change",
    [
        replaced("module.py", "a comment", "another comment"),
        replaced("module.py", "A module.", "A module of mine."),
        replaced("module.py", "A class.", "Another class."),
        replaced("module.py", "A function.", "Another function."),
        replaced("module.py", "\n\n\nclass", "\n\n\n\n\nclass"),
        replaced("empty.py", "Nothing", "All"),
        added("__pycache__/module.act-1.py311.nbi"),
        added("__pycache__/module.cpython-311.pyc"),
        added(".module.py.swp"),
        added(".DS_Store"),
    ],
)
def test_what_is_not_executed_does_not_count(folder: Path, change: Callable[[Path], object]) -> None:
    before = environment.fingerprint(1)
    change(folder)
    assert environment.fingerprint(1) == before


@pytest.mark.parametrize(
    "change",
    [
        replaced("module.py", "VALUE = 3", "VALUE = 4"),
        replaced("module.py", "no docstring", "none"),
        replaced("machine.yaml", "x", "y"),
        added("other.py"),
        lambda folder: (folder / "empty.py").unlink(),
        lambda folder: (folder / "empty.py").rename(folder / "full.py"),
    ],
)
def test_what_is_executed_counts(folder: Path, change: Callable[[Path], object]) -> None:
    before = environment.fingerprint(1)
    change(folder)
    assert environment.fingerprint(1) != before


def test_the_value_counts() -> None:
    assert environment.fingerprint({"a": 1}) == environment.fingerprint({"a": 1}) != environment.fingerprint({"a": 2})


def test_what_is_set_for_gpus_and_by_slurm_is_said_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "NCCL_IB_HCA": "mlx5_0",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "CUDA_VISIBLE_DEVICES": "3",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "n[1-4]",
    }
    for name, value in (said | {"NCCL_NET_TOKEN": "s3cret", "SLURM_JOB_USER": "ada", "HOME": "/home/ada"}).items():
        monkeypatch.setenv(name, value)
    found = environment.variables()
    assert {name: found.get(name) for name in said} == said
    assert not {"NCCL_NET_TOKEN", "SLURM_JOB_USER", "HOME"} & found.keys()


@pytest.mark.parametrize(("hosts", "named"), [(["n1", "n1"], False), (["n1", "n2"], True)])
def test_a_host_is_named_where_there_are_several(
    hosts: list[str], named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        task, "gathered", lambda mine: [mine | {"rank": i, "host": host} for i, host in enumerate(hosts)]
    )
    monkeypatch.setattr(task.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(task.socket, "gethostname", lambda: "n1")
    reported: list[Row] = []
    task.report_rows({"where": "slurm", "backends": ["gloo"], "set": {"NCCL_ALGO": "Ring"}}, reported.append, [])
    (event,) = reported
    assert [each.get("host") for each in event["environment"]] == (hosts if named else [None] * 2)
    assert [(each["rank"], each["set"]["NCCL_ALGO"]) for each in event["environment"]] == [(0, "Ring"), (1, "Ring")]
