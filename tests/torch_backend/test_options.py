"""Which algorithm a group of ours takes: its options', the environment's, or "auto" where a collective lacks it."""

from collections.abc import Iterator

import pytest
import torch
from torch import distributed as dist

from collectives.torch_backend import Options
from collectives.torch_backend.group import Group
from collectives.torch_backend.options import VARIABLE, from_environment


@pytest.fixture
def alone() -> Iterator[None]:
    yield
    dist.destroy_process_group()


def join(**options: object) -> Group:
    dist.init_process_group("collectives", store=dist.HashStore(), rank=0, world_size=1, **options)
    assert isinstance(dist.group.WORLD, Group)
    return dist.group.WORLD


def test_a_collective_without_that_algorithm_takes_auto() -> None:
    ring, bruck = Options("ring"), Options("bruck")
    assert [ring.of(each) for each in ("all_reduce", "all_gather", "broadcast")] == ["ring", "ring", "auto"]
    assert [bruck.of("all_to_all", splits) for splits in (False, True)] == ["bruck", "auto"]


def test_an_unknown_algorithm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"algorithm: got 'rnig', expected auto or one of bine, .*two_tree"):
        Options("rnig")
    with pytest.raises(ValueError, match=r"algorithm: got 'in_network', expected auto or one of (?!.*in_network)"):
        Options("in_network")  # ranks cannot execute it
    monkeypatch.setenv(VARIABLE, "rnig")
    with pytest.raises(ValueError, match="COLLECTIVES_ALGORITHM: algorithm: got 'rnig'"):
        from_environment()


@pytest.mark.usefixtures("alone")
def test_options_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "ring")
    assert join(pg_options=Options("two_tree")).algorithms == Options("two_tree")
    assert dist.new_group([0]).algorithms == Options("two_tree")  # type: ignore[union-attr]  # as the default group
    assert dist.new_group([0], pg_options=Options("tree")).algorithms == Options("tree")  # type: ignore[union-attr]


@pytest.mark.usefixtures("alone")
def test_the_environment_comes_before_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "ring")
    assert join().algorithms == Options("ring")
    assert dist.get_backend() == "collectives"


def test_other_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pg_options: got 'ring', expected Options of this back end"):
        join(pg_options="ring")


@pytest.mark.usefixtures("alone")
def test_a_device_without_a_group_is_named() -> None:
    group = join()
    with pytest.raises(ValueError, match="device: got meta, expected cpu"):
        dist.all_reduce(torch.ones(3, device="meta"))
    assert group.base("cpu").name() == "gloo"
