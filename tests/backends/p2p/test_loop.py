"""The compiled loop against the executor in Python: the same bits, whichever a rank has."""

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loop_ranks import Ranks, follow
from torch import distributed as dist

from collectives.algorithms import build, executable
from collectives.backends.p2p import local
from collectives.backends.p2p.compile import plan
from collectives.backends.p2p.reduce import as_array, refusal
from collectives.contracts import REDUCING

pytestmark = pytest.mark.integration

OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN]
BITS = [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
DTYPES = [
    *(torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16, torch.bool),
    *(torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2),
]


def data(n: int, dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Different on every rank and in every element; floats of which no two sums round alike."""
    made = torch.Generator().manual_seed(1000 * rank + n)
    if dtype == torch.bool or not dtype.is_floating_point:
        whole = torch.randint(-100, 100, (n,), generator=made)
        return whole > 0 if dtype == torch.bool else whole.to(dtype)
    return torch.randn(n, generator=made).to(dtype)


def in_bits(tensor: torch.Tensor) -> bytes:
    return tensor.view(torch.uint8).numpy().tobytes()


def cases(p: int, count: int) -> list[tuple[str, str, int, torch.dtype, Any]]:
    """Some of all algorithms, sizes, dtypes and ops."""
    found, chosen = list[Any](), random.Random(p)
    while len(found) < count:
        collective, algorithm = chosen.choice(sorted(executable()))
        dtype = chosen.choice(DTYPES)
        op = chosen.choice(OPS + BITS) if collective in REDUCING else None
        n = chosen.choice((0, 1, 2, p - 1, p + 1, 97, 1000, 70_001))
        if refusal(op, dtype) is None:
            found.append((collective, algorithm, n, dtype, op))
    return found


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_both_give_the_same_bits(p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, used = Ranks(p, monkeypatch), set()
    for collective, algorithm, n, dtype, op in cases(p, 25):
        schedule = build(collective, algorithm, p, segments=2)
        edges = schedule.cut(n)
        plans = [plan(schedule, r, edges) for r in range(p)]
        results = []
        for each in ("p" * p, ("cp" * p)[:p], "c" * p):

            def call(
                r: int,
                plans: Any = plans,
                whole: int = int(edges[-1]),
                dtype: Any = dtype,
                op: Any = op,
            ) -> Any:
                tensor, scratch = data(whole, dtype, r), torch.zeros(plans[r].scratch, dtype=dtype)
                return follow(plans[r], tensor, scratch, ranks.groups[r].mesh, op), in_bits(tensor)

            seen = ranks.run(call, each)
            assert not [error for error in seen if isinstance(error, Exception)], (collective, algorithm, n, dtype, op)
            results.append([bits for _, bits in seen])
            used |= {(each[r], name) for r, (name, _) in enumerate(seen)}
        assert all(result == results[0] for result in results), (collective, algorithm, n, dtype, op)
    ranks.close()
    assert {name for letter, name in used if letter == "p"} == {"python"}
    assert {name for letter, name in used if letter == "c"} >= {"compiled"}


def test_without_the_loop_python_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(local.importlib, "import_module", absent)
    local.loop.cache_clear()
    assert local.loop() is None
    local.loop.cache_clear()


NO_LOCKS = """
import errno, fcntl, os, sys, warnings
def refuse(*_):
    raise OSError(getattr(errno, sys.argv[1]), os.strerror(getattr(errno, sys.argv[1])))
fcntl.flock = refuse
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    from collectives.backends.p2p import local
    print(bool(local.loop()), bool(local.published()), *(each.message for each in said), sep="|")
"""


@pytest.mark.parametrize("code", ["ENOSYS", "EBADF"])  # NFS: an exclusive lock on a file that is open for reading
def test_a_file_system_without_locks_does_not_prevent_the_import(code: str) -> None:
    command = [sys.executable, "-c", NO_LOCKS, code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("True|True\n", "")


ALL = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)


def is_done(act: Callable[[], object]) -> bool:
    try:
        act()
    except (RuntimeError, TypeError):
        return False
    return True


def bits(dtype: torch.dtype) -> torch.Tensor:
    """Two elements of any dtype."""
    return torch.arange(2 * dtype.itemsize, dtype=torch.uint8).view(dtype)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of quantized types and of complex32
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_what_torch_copies_is_moved_and_what_it_adds_is_reduced_but_complex(dtype: torch.dtype) -> None:
    copied = is_done(lambda: torch.empty(2, dtype=dtype).copy_(bits(dtype)))
    assert (refusal(None, dtype) is None) == copied
    if copied:
        assert as_array(bits(dtype)).view("u1").tolist() == list(range(2 * dtype.itemsize))
    added = dtype == torch.bool or is_done(lambda: bits(dtype) + bits(dtype))
    assert (refusal(dist.ReduceOp.SUM, dtype) is None) == (added and not dtype.is_complex)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_dtype_that_can_be_moved_is_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(2, monkeypatch)
    schedule = build("broadcast", "binomial", 2)
    plans = [plan(schedule, r, schedule.cut(2)) for r in range(2)]

    def call(r: int, dtype: torch.dtype) -> bytes:
        tensor = bits(dtype) if r == 0 else torch.zeros(2 * dtype.itemsize, dtype=torch.uint8).view(dtype)
        follow(plans[r], tensor, tensor[:0], ranks.groups[r].mesh, None)
        return in_bits(tensor)

    for dtype in [each for each in ALL if refusal(None, each) is None]:
        for who in ("cc", "pp"):
            assert ranks.run(lambda r, dtype=dtype: call(r, dtype), who) == [in_bits(bits(dtype))] * 2
    ranks.close()


@pytest.mark.parametrize(("value", "is_there"), [("compiled", True), ("python", False)])
def test_the_variable_selects_the_executor(value: str, is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(local.EXECUTOR_VARIABLE, value)
    local.loop.cache_clear()
    assert (local.loop() is not None) == is_there
    local.loop.cache_clear()


def test_another_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(local.EXECUTOR_VARIABLE, "quick")
    local.loop.cache_clear()
    with pytest.raises(ValueError, match="COLLECTIVES_EXECUTOR: got 'quick', expected compiled or python"):
        local.loop()
    local.loop.cache_clear()
