"""Wires: known codes, their rounding, bytes that are counted as they are sent, and numbers that no format has."""

import numpy as np
import pytest
import torch

from collectives.algorithms import build, executable, names
from collectives.backends.coding import decode, encode, rounded
from collectives.backends.p2p.compile import plan
from collectives.backends.p2p.program import Send
from collectives.schedule import Schedule, ScheduleError
from collectives.simulator.simulation import simulate
from collectives.traffic import traffic
from collectives.wire import WIRES

MX = [wire for wire in WIRES if wire.startswith("mx")]


def block(*values: float) -> torch.Tensor:
    """Values, and zeros up to a whole block."""
    return torch.tensor([*values, *[0.0] * (32 - len(values))])


@pytest.mark.parametrize(
    ("wire", "values", "codes", "scale"),
    [
        ("mxint8", (1.0, -0.5, 1.984375), (64, 256 - 32, 127), 127),
        ("mxfp8", (1.0, -1.125, 0.5), (0x78, 0x80 + 0x79, 0x70), 127 - 8),
        ("mxfp4", (6.0, -0.5, 3.0, 1.0), (7 | 9 << 4, 5 | 2 << 4), 127),
    ],
)
def test_codes_are_those_of_the_specification(
    wire: str, values: tuple[float, ...], codes: tuple[int, ...], scale: int
) -> None:
    coded = encode(wire, block(*values))
    assert coded[: len(codes)].tolist() == list(codes)
    assert coded[-1] == scale
    assert decode(wire, coded).tolist() == block(*values).tolist()


@pytest.mark.parametrize("wire", WIRES)
def test_encoding_again_changes_nothing(wire: str) -> None:
    for seed, scale in enumerate((1.0, 1e-3, 300.0, 1e-37, 1e-41, 1e30)):
        values = scale * torch.randn(3200, generator=torch.Generator().manual_seed(seed))
        once = rounded(wire, values)
        assert torch.equal(rounded(wire, once), once)
        assert len(encode(wire, once)) == WIRES[wire].nbytes(3200)


@pytest.mark.parametrize("wire", MX)
def test_a_value_moves_by_half_a_step_of_its_block_at_most(wire: str) -> None:
    """A step is a share of the block's largest value; what is larger than every number becomes the largest."""
    step = {"mxint8": 2.0**-6, "mxfp8": 2.0**-2, "mxfp4": 1.0}[wire]
    values = torch.randn(6400, generator=torch.Generator().manual_seed(3)).view(-1, 32)
    most = values.abs().amax(1, keepdim=True)
    apart = (rounded(wire, values.view(-1)).view(-1, 32) - values).abs() / most
    assert 0.2 * step < float(apart.max()) <= 0.5 * step


@pytest.mark.parametrize("wire", WIRES)
def test_whole_numbers_are_exact_as_far_as_the_wire_says(wire: str) -> None:
    most = min(WIRES[wire].exact, 1 << 11)
    for top in {most, most - 1, most // 2 + 1, 1}:
        numbers = torch.arange(-top, top + 1).float()
        for part in numbers.split(31):
            each = torch.cat([part, torch.tensor([float(top)])])
            assert torch.equal(rounded(wire, each), each)


@pytest.mark.parametrize("wire", MX)
def test_what_is_not_finite_makes_its_block_nan_and_no_other(wire: str) -> None:
    for bad in (float("inf"), float("-inf"), float("nan")):
        values = torch.ones(96)
        values[40] = bad
        found = rounded(wire, values)
        assert found[32:64].isnan().all()
        assert torch.equal(found[:32], torch.ones(32))
        assert torch.equal(found[64:], torch.ones(32))


@pytest.mark.parametrize("name", names("all_reduce", executable()))
def test_bytes_are_counted_as_ranks_send_them(name: str) -> None:
    for wire, p, n in (("mxint8", 1, 70), ("mxfp4", 2, 1), ("mxfp4", 5, 1000), ("bfloat16", 5, 333), ("mxfp8", 6, 99)):
        schedule = build("all_reduce", f"{name}/{wire}", p, segments=2)
        edges, counted = schedule.cut(n), traffic(schedule, 4 * n)
        for rank in range(p):
            sends = [do for do in plan(schedule, rank, edges).instructions() if isinstance(do, Send)]
            spans = [span.stop - span.start for do in sends for span in do.spans]
            assert sum(len(encode(wire, torch.zeros(length))) for length in spans) == counted.sent[rank]
            assert len(sends) == counted.messages_sent[rank]


def test_a_simulated_time_falls_with_the_bytes() -> None:
    from collectives.machine import machine

    times = {
        wire: simulate(build("all_reduce", f"ring/{wire}", 8), machine("textbook"), 1 << 30).seconds
        for wire in ("float32", "bfloat16", "mxint8")
    }
    assert times["float32"] / times["bfloat16"] == pytest.approx(2, rel=0.01)
    assert times["float32"] / times["mxint8"] == pytest.approx(32 / 8.25, rel=0.01)


def test_a_wire_belongs_to_an_all_reduce() -> None:
    with pytest.raises(
        ScheduleError, match=r"wire of a schedule: got mxint8 in broadcast, expected one of float32, .*"
    ):
        Schedule("broadcast", 2, 1, 0, lambda _: build("broadcast", "flat", 2).step(0), root=0, wire="mxint8")
    with pytest.raises(ScheduleError, match="wire of a schedule: got int8 in all_reduce"):
        Schedule("all_reduce", 2, 1, 0, lambda _: build("broadcast", "flat", 2).step(0), wire="int8")


def test_chunks_of_a_wire_have_whole_blocks() -> None:
    edges = build("all_reduce", "ring/mxfp8", 5).cut(333)
    assert (np.diff(edges) % 32 == 0).all()
    assert edges[-1] == 352
    assert build("all_reduce", "ring/bfloat16", 5).cut(333).tolist() == build("all_reduce", "ring", 5).cut(333).tolist()
