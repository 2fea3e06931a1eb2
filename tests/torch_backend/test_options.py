"""Which algorithm a group of ours takes: its options', the environment's, or "auto" where a collective lacks it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from collectives.core.schedule import ScheduleError
from collectives.torch_backend import Options
from collectives.torch_backend.group import Group
from collectives.torch_backend.options import VARIABLE, from_environment


@pytest.fixture
def alone() -> Iterator[None]:
    yield
    dist.destroy_process_group()


def join(backend: str = "collectives", **options: object) -> Group:
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **options)
    assert isinstance(dist.group.WORLD, Group)
    return dist.group.WORLD


def test_a_collective_without_that_algorithm_takes_auto() -> None:
    packed = Options("packed_trees@mesh:2x2")
    assert [packed.of(each, 4) for each in ("all_reduce", "all_to_all")] == [
        "packed_trees@mesh:2x2",
        "auto",
    ]
    with pytest.raises(ValueError, match="unknown machine 'dgx7'"):
        Options("packed_trees@dgx7")
    ring, bruck = Options("ring"), Options("bruck")
    assert [ring.of(each, 4) for each in ("all_reduce", "all_gather", "broadcast")] == [
        "ring",
        "ring",
        "auto",
    ]
    assert [bruck.of("all_to_all", 4, splits) for splits in (False, True)] == ["bruck", "auto"]


def test_a_name_with_a_slash_is_refused() -> None:
    with pytest.raises(ValueError, match="algorithm: got 'two_shot/mxint8', expected auto or one"):
        Options("two_shot/mxint8")


def test_an_unknown_algorithm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"got 'rnig', expected auto or one of around_slow_rank, .*two_tree"
    ):
        Options("rnig")
    with pytest.raises(
        ValueError, match=r"algorithm: got <function join .*expected auto .* as FILE.py:FUNCTION"
    ):
        Options(join)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"algorithm: got 'in_network', expected auto or one of (?!.*in_network)"
    ):
        Options("in_network")  # ranks cannot execute it
    monkeypatch.setenv(VARIABLE, "rnig")
    with pytest.raises(ValueError, match="COLLECTIVES_ALGORITHM: algorithm: got 'rnig'"):
        from_environment()


@pytest.mark.usefixtures("alone")
def test_one_of_your_own_serves_its_collective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from collectives.algorithms.ring import all_reduce as mine\n"
    )
    name = f"{tmp_path / 'mine.py'}:mine"
    assert [Options(name).of(each, 4) for each in ("all_reduce", "broadcast")] == [name, "auto"]
    with pytest.raises(ValueError, match="no function 'yours'"):
        Options(f"{tmp_path / 'mine.py'}:yours")
    monkeypatch.setenv(VARIABLE, name)
    assert join().algorithms == Options(name)
    x = torch.arange(3.0)
    dist.all_reduce(x)
    assert x.tolist() == [0.0, 1.0, 2.0]


def test_one_of_your_own_that_fails_is_refused_before_ranks_meet(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("def mine(p):\n    return p\n")
    with pytest.raises(ScheduleError, match=r"mine failed when it was called.*returned int"):
        join(pg_options=Options(f"{tmp_path / 'wrong.py'}:mine"))
    assert not dist.is_initialized()


def test_a_machine_that_is_not_there_is_refused_when_the_group_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLLECTIVES_MACHINE", "nofile.yaml")
    with pytest.raises(
        ValueError, match=r"COLLECTIVES_MACHINE on rank 0: there is no machine file nofile\.yaml"
    ):
        join()
    assert not dist.is_initialized()


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


@pytest.mark.usefixtures("alone")
def test_a_program_that_names_no_back_end_takes_ours_by_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line that the package's docstring has."""
    monkeypatch.setitem(dist.Backend.default_device_backend_map, "cpu", "collectives")
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    assert isinstance(dist.group.WORLD, Group)


def test_other_options_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"pg_options: got 'ring', expected Options of this back end"
    ):
        join(pg_options="ring")


@pytest.mark.usefixtures("alone")
def test_a_device_without_a_group_is_named() -> None:
    group = join()
    with pytest.raises(ValueError, match="device: got meta, expected cpu"):
        dist.all_reduce(torch.ones(3, device="meta"))
    assert group.base("cpu").name() == "gloo"
