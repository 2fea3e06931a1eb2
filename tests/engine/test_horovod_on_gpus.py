"""Horovod's CUDA path without a GPU: on the fake GPUs every tensor stays there, and the host waits for nothing."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_nccl import DEVICE, Tensor, World, install
from torch import distributed as dist

from collectives.backends import backend, horovod, nccl
from collectives.engine.call import Call

RANKS, N = 3, 6


class OnGpus:
    """Stand in for ``horovod.torch`` on ranks that all hold the same: what it would return, made on the GPU."""

    Sum, Average, Product, Max, Min = "sum", "average", "product", "max", "min"

    def __init__(self) -> None:
        self.names: list[str] = []

    def took(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        assert tensor.device == DEVICE, "a copy on the CPU"
        self.names.append(name)
        return tensor

    def allreduce_(self, tensor: torch.Tensor, op: str, name: str) -> Any:
        assert op == self.Sum
        return self.took(tensor, name).mul_(RANKS)

    def broadcast_(self, tensor: torch.Tensor, root: int, name: str) -> Any:
        return self.took(tensor, name).mul_(1 + root)

    def allgather(self, tensor: torch.Tensor, name: str) -> Any:
        return torch.cat([self.took(tensor, name)] * RANKS)

    def reducescatter(self, tensor: torch.Tensor, op: str, name: str) -> Any:
        return self.took(tensor, name)[: N // RANKS] * RANKS

    def alltoall(self, tensor: torch.Tensor, name: str) -> Any:
        return self.took(tensor, name) * 1


WHOLE = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
EXPECTED = {
    "all_reduce": [3.0, 6.0, 9.0, 12.0, 15.0, 18.0],
    "broadcast": [3.0, 6.0, 9.0, 12.0, 15.0, 18.0],
    "all_gather": WHOLE * RANKS,
    "reduce_scatter": [3.0, 6.0],
    "all_to_all": WHOLE,
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> OnGpus:
    made = OnGpus()
    monkeypatch.setattr(horovod, "started", lambda: made)
    monkeypatch.setattr(horovod, "_on_gpus", lambda: True)
    return made


@pytest.mark.parametrize("collective", EXPECTED)
def test_a_call_stays_on_the_gpu(
    collective: str, library: OnGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(1)
    install(monkeypatch, world)
    given = Tensor(torch.tensor(WHOLE))
    with world.on(0):
        in_place = collective in ("all_reduce", "broadcast")
        output = given if in_place else torch.empty(len(EXPECTED[collective]), device=DEVICE)
        call = Call(collective, output, given, dist.ReduceOp.SUM, 2, algorithm="default")
        backend("horovod").perform(call)
    world.run()
    assert output.memory.tolist() == EXPECTED[collective]
    assert len(library.names) == 1


@pytest.mark.usefixtures("library")
def test_its_rank_takes_the_gpu_and_the_group_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "device", lambda: DEVICE)
    monkeypatch.setattr(nccl, "group", lambda: "torch's group over NCCL")
    monkeypatch.setattr(nccl, "devices", lambda: "8 x H200")
    one = backend("horovod")
    assert (one.on_gpus, one.device(), one.group(), one.devices()) == (
        True,
        DEVICE,
        "torch's group over NCCL",
        "8 x H200",
    )


def test_operations_are_those_of_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    built = SimpleNamespace(
        nccl_built=lambda: 22907, mpi_built=lambda: False, gloo_built=lambda: True
    )
    asked = horovod.operations.__wrapped__
    monkeypatch.setattr(horovod.importlib.util, "find_spec", lambda _: None)
    assert asked() == ()
    monkeypatch.setattr(horovod.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setitem(__import__("sys").modules, "horovod", SimpleNamespace(torch=built))
    monkeypatch.setitem(__import__("sys").modules, "horovod.torch", built)
    assert asked() == ("NCCL", "Gloo")
