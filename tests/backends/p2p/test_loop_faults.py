"""A rank that fails while others are in the compiled loop: each reports what it would report from Python."""

import time
from collections.abc import Callable

import pytest
import torch
from loop_ranks import Ranks
from torch import distributed as dist

from collectives.algorithms import build
from collectives.backends.p2p import execute as executors
from collectives.backends.p2p.compile import plan
from collectives.backends.p2p.mesh import Mesh

pytestmark = pytest.mark.integration

P, N = 3, 100_000
LATE = 0.3  # seconds: longer than the loop runs before it looks for signals
SIGNATURE, OTHER = bytes(40), bytes(39) + b"x"


def call(ranks: Ranks, r: int, signature: bytes = SIGNATURE, n: int = N) -> str:
    """An all-reduce by a ring; the executor that served it."""
    schedule = build("all_reduce", "ring", P)
    made = plan(schedule, r, schedule.cut(n))
    tensor, scratch, group = torch.ones(n), torch.zeros(made.scratch), ranks.groups[r]
    name, _ = executors.execute(made, tensor, scratch, group, dist.ReduceOp.SUM, P, signature)  # type: ignore[arg-type]
    return name


def gives_up(ranks: Ranks) -> None:
    joined = ranks.groups[1].mesh
    joined.begin(step_by_step=False, signature=SIGNATURE)
    joined.fail(ValueError("planted"))
    joined.end()


def is_interrupted(ranks: Ranks) -> None:
    """Ctrl-C while it waits."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    mesh = ranks.groups[1].mesh
    mesh.__class__ = type("Interrupted", (Mesh,), {"is_due": property(interrupt), "wait": interrupt})
    with pytest.raises(KeyboardInterrupt):
        call(ranks, 1)


# What rank 1 does instead of its second call, and what the others say of it.
FAULTS: dict[str, tuple[Callable[[Ranks], object], str]] = {
    "gives up": (gives_up, "rank 1 failed by ValueError: planted"),
    "closes": (lambda ranks: ranks.groups[1].mesh.close(), "rank 1"),
    "calls differently": (lambda ranks: call(ranks, 1, OTHER), "call differs from this rank's: algorithm"),
    "has another size": (lambda ranks: call(ranks, 1, n=N + P), "bytes came, not"),
    "does not come": (lambda ranks: None, "not done within the timeout of 2 s"),
    "is interrupted": (is_interrupted, "rank 1 failed by KeyboardInterrupt"),
}


# A capital letter is a rank without shared memory.
@pytest.mark.parametrize("who", ["ppp", "ccc", "pcp", "cpc", "CCC", "PCP", "cCc"])
@pytest.mark.parametrize("fault", list(FAULTS))
def test_the_others_say_why(fault: str, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(P, monkeypatch, seconds=2.0, tcp=[r for r in range(P) if who[r].isupper()])
    who = who.lower()
    act, words = FAULTS[fault]
    expected = ["compiled" if letter == "c" else "python" for letter in who]
    ranks.run(lambda r: call(ranks, r), who)  # makes the connections
    assert ranks.run(lambda r: call(ranks, r), who) == expected

    def once_more(r: int) -> object:
        if r == 1:
            return act(ranks)
        time.sleep(LATE if fault == "is interrupted" else 0.0)  # so that the first one waits
        return call(ranks, r)

    first, _, last = ranks.run(once_more, who)
    ranks.close()
    for said in (first, last):
        assert isinstance(said, RuntimeError), said
        assert words in str(said)
        assert "in step " in str(said)
