"""Schedules of TE-CCL held against the links of their network."""

import json

import pytest

from collectives_book.teccl_networks import (
    GB,
    NETWORKS,
    SIZES,
    Fit,
    Stated,
    capacities,
    fit,
    published,
    stated,
)
from interop.test_teccl import TOP, File, exchange, gather, line, read, star


def test_a_file_states_its_epoch_and_bandwidth() -> None:
    assert stated(json.dumps(gather([0, 1])).encode()) == Stated(TOP["1-Epoch_Duration"], 2.0)


EPOCH = 1e-3  # seconds, in which the fastest link of an NDv2 carries 50 MB


def fitted(file: File, network: str, nbytes: float) -> Fit:
    return fit(read(file), EPOCH, network, nbytes)


def on_links(flows: list[str], nbytes: float) -> str:
    """Compare with two NDv2 chassis."""
    file = gather(list(range(16)))
    return fitted({**file, "7-Flows": flows}, "NDv2 2 chassis", nbytes).missing


FAST, SLOW, CHUNK = "0->1 in epoch", "0->9 in epoch", 50e6


@pytest.mark.parametrize(
    ("hops", "nbytes", "message"),
    [
        ([(0, f"{FAST} 0")], CHUNK, ""),
        (
            [(0, f"{FAST} 0"), (1, f"{FAST} 0")],
            CHUNK,
            "link 0->1, epoch 0: got 2 chunks, expected at most 1",
        ),
        ([(0, f"{FAST} 0"), (1, f"{FAST} 1")], CHUNK, ""),
        ([(0, f"{SLOW} 0"), (1, f"{SLOW} 4")], CHUNK, ""),
        (
            [(0, f"{SLOW} 0"), (1, f"{SLOW} 3")],
            CHUNK,
            "link 0->9, epoch 3: got 2 chunks, expected at most 1",
        ),
        ([(0, "0->8 in epoch 0")], CHUNK, "link 0->8: got flows, expected none"),
        ([(0, f"{SLOW} 0"), (0, "9->8 in epoch 4")], CHUNK, ""),
        (
            [(0, f"{SLOW} 0"), (0, "9->8 in epoch 3")],
            CHUNK,
            "GPU 9 sends chunk 0 from 0: got it in epoch 4",
        ),
    ],
)
def test_links_carry_no_more_than_they_can(
    hops: list[tuple[int, str]], nbytes: float, message: str
) -> None:
    found = on_links([line(chunk, 0, hop) for chunk, hop in hops], nbytes)
    assert (message in found) if message else not found


def test_time_and_bandwidth_come_from_the_flows() -> None:
    found = fitted(star(list(range(1, 33)), 0), "NDv2 4 chassis", CHUNK)
    assert "expected none, because the network has no such link" in found.missing
    direct = fitted(
        {**gather(list(range(1, 16))), "7-Flows": [line(0, 8, "8->1 in epoch 0")]},
        "NDv2 2 chassis",
        CHUNK,
    )
    assert direct == (
        "GPU 0 of 16 takes no part",
        pytest.approx(4e-3),
        pytest.approx(15 * CHUNK / 4e-3),
    )


def test_a_link_from_a_switch_takes_no_time_of_its_own() -> None:
    file = gather(list(range(1, 33)))
    found = fitted(
        {**file, "7-Flows": [line(0, 1, "1->10 in epoch 0 via switches 0")]},
        "NDv2 4 chassis",
        CHUNK,
    )
    assert (found.missing, found.seconds) == ("", pytest.approx(4e-3))


def test_a_node_beyond_the_network_is_refused() -> None:
    with pytest.raises(
        ValueError, match="nodes of the flows: got 33, expected at most 15 on NDv2 2 chassis"
    ):
        fitted(gather([0, 33]), "NDv2 2 chassis", CHUNK)
    with pytest.raises(ValueError, match="network"):
        capacities("NDv2 3 chassis")


def test_networks_are_what_their_source_says() -> None:
    nodes = {"DGX2 2 chassis": (34, 16), "NDv2 2 chassis": (16, 2), "NDv2 4 chassis": (33, 8)}
    assert {
        name: (len(capacities(name)), int((capacities(name) == 1).sum())) for name in NETWORKS
    } == nodes
    for name in ("NDv2 2 chassis", "NDv2 4 chassis"):
        inside = capacities(name) * (capacities(name) > 1)
        assert (inside == inside.T).all()
        assert (inside.sum(axis=1)[-8:] == 12).all()  # six NVLinks of 25 GB/s
    assert (capacities("DGX2 2 chassis") == 10).sum() == 64


def test_a_path_names_its_network_and_its_chunk() -> None:
    sizes = [published(f"a/NDv2_output/4_chassis/AllGather/Slow/{size}.json") for size in SIZES]
    assert sizes[0] == ("NDv2 4 chassis", 1000 / 32)
    assert sizes[-1] == ("NDv2 4 chassis", GB / 32)
    assert published("DGX2_output/2_chassis/AlltoAll/Fast/4MB.json") == ("DGX2 2 chassis", 4e6 / 32)
    assert published("NDv2_output/3_chassis/AllGather/Slow/1GB.json") is None
    assert published("NDv2_output/2_chassis/AllGather/Slow/3GB.json") is None


def test_a_piece_takes_one_epoch_and_a_link_carries_volumes() -> None:
    file = exchange([1, 2, 3])
    right = fitted(file, "NDv2 4 chassis", 25e6)
    assert right.seconds == pytest.approx(3e-3)
    over = fitted(file, "NDv2 4 chassis", 100e6)
    assert right.missing == "GPU 4–32 of 32 takes no part"
    assert "link 1->3, epoch 0: got 0.5 chunks, expected at most 0.25" in over.missing
