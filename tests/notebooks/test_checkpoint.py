"""A checkpoint is whole or not there, runs no code, and a training that resumes is the undisturbed one, bit for bit."""

import os
import re
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from collectives_book.training.checkpoint import broadcast, load, write
from collectives_book.training.replicas import alone
from collectives_book.training.step import State, Training, step
from collectives_book.training.train import train
from command import started
from places import PATIENCE
from sweep import each

TRAINING = Training(steps=30, batch=256, width=16)


def same(one: State, other: State) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return one.losses == other.losses and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.integration  # seconds
@pytest.mark.parametrize("stopped", each([1, 10, 29, 30], few=[1, 29]))
def test_a_training_that_resumes_is_the_undisturbed_one(tmp_path: Path, stopped: int) -> None:
    file = str(tmp_path / "run.pt")
    train(replace(TRAINING, steps=stopped), alone(), file=file, every=4)
    assert same(train(TRAINING, alone(), file=file), train(TRAINING, alone()))
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


@pytest.mark.integration  # seconds
def test_it_resumes_after_the_last_step_that_was_written(tmp_path: Path) -> None:
    file, taken = str(tmp_path / "run.pt"), []

    def counted(state: State, *rest: Any) -> float:
        taken.append(len(state.losses))
        if taken[-1] == 13 and taken.count(13) == 1:
            raise KeyboardInterrupt
        return step(state, *rest)

    with pytest.raises(KeyboardInterrupt):
        train(TRAINING, alone(), counted, file=file, every=5)
    assert same(train(TRAINING, alone(), counted, file=file, every=5), train(TRAINING, alone()))
    assert taken == [*range(14), *range(10, 30)]


def test_a_write_that_is_interrupted_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.pt"
    write(file, {"losses": [1.0]})

    def interrupted(content: Any, stream: Any) -> None:
        stream.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(file, {"losses": [2.0]})
    assert load(file, alone()) == {"losses": [1.0]}
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


class Attack:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("attacked",))


@pytest.mark.parametrize("content", [b"x", b"PK\x03\x04" + bytes(100), {"losses": Attack()}])
def test_a_damaged_checkpoint_is_named_and_runs_no_code(
    content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.pt").write_bytes(content) if isinstance(content, bytes) else torch.save(
        content, "run.pt"
    )
    with pytest.raises(ValueError, match=r"invalid checkpoint run\.pt: "):
        train(TRAINING, alone(), file="run.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"batch": 128}, "got batch=256, expected batch=128"), ({"seed": 1}, "seed=0")],
)
def test_a_checkpoint_of_another_training_is_refused(
    tmp_path: Path, change: dict[str, int], message: str
) -> None:
    file = str(tmp_path / "run.pt")
    train(replace(TRAINING, steps=1), alone(), file=file)
    with pytest.raises(ValueError, match=message):
        train(replace(TRAINING, **change), alone(), file=file)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_bytes_travel_in_whole_words(size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    sent: list[int] = []
    replicas = alone()._replace(broadcast=lambda tensor: sent.append(tensor.numel()))
    assert broadcast(data, replicas) == data
    assert sent == ([1, -(-size // 8)] if size else [1])


PROGRAM = [
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "--max-restarts",
    "1",
]
# Without it all starts share a store, in which a rank may find the address of one that is gone
# (pytorch #135712).
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
TRAIN = ["-m", "collectives_book.train_digits", "--steps", "600", "--rate", "0.01", "--every", "20"]


def begun(file: Path) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, *PROGRAM, *TRAIN, "--checkpoint", str(file)]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return started(command, **both, env=os.environ | OWN_STORE, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return said


@pytest.mark.extended
def test_torchrun_starts_all_ranks_again_and_they_resume(tmp_path: Path) -> None:
    """One rank is killed by SIGKILL; the training ends as the undisturbed one does, bit for bit."""
    with begun(tmp_path / "undisturbed.pt") as undisturbed:
        assert finished(undisturbed).count("step 1: ") == 1
    with begun(tmp_path / "disturbed.pt") as disturbed:
        while not (tmp_path / "disturbed.pt").exists():
            assert disturbed.poll() is None
            time.sleep(0.01)
        workers = psutil.Process(disturbed.pid).children(recursive=True)
        (second,) = (each for each in workers if each.environ().get("RANK") == "1")
        second.kill()
        said = finished(disturbed)
    first, again = [int(step) for step in re.findall(r"step (\d+): ", said) if int(step) % 10 == 1]
    assert (first, again % 20) == (1, 1), said
    one, other = (
        load(tmp_path / f"{name}.pt", alone()) or {} for name in ("undisturbed", "disturbed")
    )
    assert len(one["losses"]) == 600
    assert one["losses"] == other["losses"]
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
