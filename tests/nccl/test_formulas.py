"""NCCL's formulas beside numbers of its logs, of its source, and of what its users measured."""

import pytest

from collectives.nccl.formulas import (
    ALGORITHMS,
    GENERATIONS,
    LATENCIES,
    PROTOCOLS,
    Channels,
    Job,
    default_algorithms,
    job,
    predictions,
    seconds,
)


def of_h100(nodes: int, collective: str = "all_reduce") -> Job:
    return job(collective, nodes, 8, "hopper", 370.8, 8, 50.0)  # 18 links of 20.6 GB/s, NDR ports


def of_a100(nodes: int) -> Job:
    return job("all_reduce", nodes, 8, "ampere", 240.0, 8, 25.0)


def busbw(ranks: int, nbytes: int, took: float) -> float:
    return 2 * (ranks - 1) / ranks * nbytes / took / 1e9


@pytest.mark.parametrize(
    ("of", "found"),
    [
        (of_h100(1), Channels(12, 30, 30)),  # as NCCL's log says: 24 channels in a call
        (of_a100(1), Channels(12, 20, 20)),
        (of_h100(2), Channels(8, 45, 45)),
        (of_a100(4), Channels(8, 24, 24)),
    ],
)
def test_channels_are_those_of_known_machines(of: Job, found: Channels) -> None:
    assert of.rings == found


@pytest.mark.parametrize(
    ("nodes", "nbytes", "algorithms", "measured"),
    [
        (1, 4 << 30, ["ring", "tree", "nvls"], 475),  # NVIDIA/nccl-tests issue 272
        (1, 4 << 30, ["ring"], 367),  # NVIDIA/nccl issue 1455
        (2, 8 << 30, ["ring", "tree", "nvls_tree"], 430),  # NVIDIA/nccl issue 1221
        (4, 8 << 30, ["ring"], 320),  # the same
        (248, 512 << 20, ["ring", "tree", "nvls_tree"], 350),  # NVIDIA/nccl-tests issue 283
    ],
)
def test_large_buffers_are_within_an_eighth_of_what_users_measured(
    nodes: int, nbytes: int, algorithms: list[str], measured: float
) -> None:
    of = of_h100(nodes)
    choice = predictions(of, nbytes, algorithms)[0]
    assert busbw(of.ranks, nbytes, choice.seconds) == pytest.approx(measured, rel=0.13)


def test_a_call_of_few_bytes_by_hand() -> None:
    of = of_h100(4)
    tree = 6.8 + 2 * (7 * 0.6 + 2 * 5.0)
    ring = 6.6 + (62 - 6) * 1.0 + 6 * 2.7
    assert seconds(of, "tree", "LL", 0) == pytest.approx(tree / 1e6)
    assert seconds(of, "ring", "LL", 0) == pytest.approx(ring / 1e6)
    assert seconds(of, "nvls_tree", "Simple", 0) == pytest.approx((25 + 2 * 2 * 20.9) / 1e6)
    broadcast = of_h100(4, "broadcast")
    assert seconds(broadcast, "ring", "LL", 0) == pytest.approx((6.6 + 2.7) / 1e6)


def test_only_gpus_with_a_switch_that_adds_use_one() -> None:
    assert "nvls" not in default_algorithms(of_a100(1))
    assert "nvls" in default_algorithms(of_h100(1, "all_gather"))
    assert default_algorithms(job("all_gather", 4, 1, "hopper", 370.8, 1, 50.0)) == ["ring", "pat"]
    with pytest.raises(ValueError, match="without a switch"):
        seconds(of_a100(1), "nvls", "Simple", 8)


@pytest.mark.parametrize("gpus", GENERATIONS)
@pytest.mark.parametrize("collective", ALGORITHMS)
@pytest.mark.parametrize(("nodes", "each"), [(1, 8), (1, 3), (2, 8), (3, 5), (7, 1)])
def test_more_bytes_or_nodes_never_take_less_time(
    gpus: str, collective: str, nodes: int, each: int
) -> None:
    of = job(collective, nodes, each, gpus, 300.0, each, 25.0)
    more = job(collective, nodes + 3, each, gpus, 300.0, each, 25.0)
    sizes = (8, 64, 1 << 20, 1 << 30)
    for algorithm in default_algorithms(of):
        for protocol in PROTOCOLS:
            if (algorithm, protocol) not in LATENCIES or algorithm == "nvls":
                continue
            times = [seconds(of, algorithm, protocol, n) for n in sizes]
            assert times == sorted(times)
            on_more = seconds(more, algorithm, protocol, 8)
            assert on_more >= times[0]
