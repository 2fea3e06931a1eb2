"""Kernels combine, divide and round as torch does, bit for bit, wherever their operands are."""

import fcntl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import distributed as dist

from collectives.bench import settings
from collectives.engine import kernels as kernels_module
from collectives.engine import ops
from collectives.engine.kernels import BLOCK, KERNELS, combine, divide, kernels
from collectives.engine.ops import BY_ROW_NAME, OPS, name_of
from collectives.engine.reduce import HALF

pytestmark = pytest.mark.integration  # compiles

SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG
REDUCED_BY = [SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN]


def run(op: object, into: torch.Tensor, operands: list[torch.Tensor]) -> None:
    found = kernels(op, into.dtype)
    addresses = np.array([each.data_ptr() for each in operands])
    combine(np.array(found, KERNELS)[()], into.data_ptr(), addresses, len(into))


def every(dtype: torch.dtype) -> torch.Tensor:
    """All values of a half type, those that are no numbers, too."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    bits = one.view(torch.int16) == other.view(torch.int16)
    return bool((bits | (one.isnan() & other.isnan())).all())


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("op", REDUCED_BY)
def test_two_of_a_half_type_as_torch(op: object, dtype: torch.dtype) -> None:
    one, into = every(dtype), torch.zeros(1 << 16, dtype=dtype)
    for seed in range(3):
        other = one[torch.randperm(len(one), generator=torch.Generator().manual_seed(seed))]
        run(op, into, [one, other])
        assert same(into, OPS[op].combine(one, other))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("p", [2, 3, 7, 24])
def test_averages_of_a_half_type_as_torch(p: int, dtype: torch.dtype) -> None:
    found, values = kernels(AVG, dtype), every(dtype)
    divide(np.array(found, KERNELS)[()], values.data_ptr(), len(values), p)
    assert same(values, every(dtype).div_(p))


@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.int64])
@pytest.mark.parametrize("n", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize("place", [None, 0, 1, 2])
def test_the_place_may_be_any_operand(place: int | None, n: int, dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(n)
    operands = [(100 * torch.randn(n, generator=made)).to(dtype) for _ in range(3)]
    wide = [each.float() if dtype in HALF else each.clone() for each in operands]
    total = (wide[0] + wide[1] + wide[2]).to(dtype)
    into = torch.zeros(n, dtype=dtype) if place is None else operands[place]
    run(SUM, into, operands)
    assert torch.equal(into, total)


@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.int64])
@pytest.mark.parametrize("n", [1, BLOCK - 1, 2 * BLOCK + 1])
@pytest.mark.parametrize("place", [0, 1])
def test_the_place_may_be_one_of_two(place: int, n: int, dtype: torch.dtype) -> None:
    for op in (SUM, dist.ReduceOp.MAX):
        made = torch.Generator().manual_seed(n)
        operands = [(100 * torch.randn(n, generator=made)).to(dtype) for _ in range(2)]
        expected, kept = OPS[op].combine(*operands), operands[1 - place].clone()
        run(op, operands[place], operands)
        assert torch.equal(operands[place], expected)
        assert torch.equal(operands[1 - place], kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_threads_combine_at_the_same_time(dtype: torch.dtype) -> None:
    """Memory that one thread has freed goes to another, where threads are more than the arenas of malloc."""
    threads, n = 64, 8 * BLOCK
    made = [
        torch.randn(n, generator=torch.Generator().manual_seed(r)).to(dtype)
        for r in range(threads + 2)
    ]
    found = kernels(AVG, dtype)

    def many(r: int) -> bool:
        operands, seen = made[r : r + 3], set()
        for _ in range(200):
            run(SUM, into := torch.zeros(n, dtype=dtype), operands)
            divide(np.array(found, KERNELS)[()], into.data_ptr(), n, 3)
            seen.add(into.view(torch.uint8).numpy().tobytes())
        return len(seen) == 1

    with ThreadPoolExecutor(threads) as pool:
        assert all(pool.map(many, range(threads)))


def test_one_process_at_a_time_compiles_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def need_lock(*_: object) -> None:
        with Path(kernels_module.__file__).open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(
        kernels_module, "compiled_callback", compiler := Mock(side_effect=need_lock)
    )
    kernels_module._compiled.__wrapped__(ops.add, *3 * [kernels_module.BYTES])
    compiler.assert_called_once()


def test_each_op_has_one_row_which_measurements_name_as_settings_do() -> None:
    assert tuple(BY_ROW_NAME) == settings.OPS
    assert [name.upper()[:3] for name in BY_ROW_NAME] == [
        name_of(BY_ROW_NAME[name])[:3] for name in BY_ROW_NAME
    ]


@pytest.mark.parametrize("op", OPS)
def test_a_loop_and_its_loop_for_bools_do_what_torch_does(op: object) -> None:
    if op == AVG:
        return  # a sum, which `divide` divides
    one, other = torch.arange(-8, 8), torch.arange(16) % 5
    into = torch.zeros(16, dtype=torch.int64)
    run(op, into, [one, other])
    assert torch.equal(into, OPS[op].combine(one, other))
    bits = [torch.tensor(each) for each in ([False, False, True, True], [False, True] * 2)]
    into = torch.zeros(4, dtype=torch.bool)
    run(op, into, bits)
    if OPS[op].is_bitwise:
        assert torch.equal(into, OPS[op].combine(*bits))
    else:
        assert torch.equal(into, OPS[op].combine(*[each.int() for each in bits]) > 0)
