"""A rank that fails while others are in the compiled loop: each says why."""

import re
import socket
import time
from collections.abc import Callable

import pytest
import torch
from loop_ranks import LIMIT, Ranks
from loop_ranks import call as execute
from torch import distributed as dist

from collectives.algorithms import build
from collectives.engine import mesh
from collectives.engine.compile import plan
from collectives.engine.handshake import signature
from collectives.engine.mesh import Mesh

pytestmark = pytest.mark.integration

P, N = 3, 100_000
LATE = 0.3  # seconds: longer than the loop runs before it looks for signals
SECONDS = 2.0  # the group's timeout where it comes, which is long otherwise
NO_SIGN = "rank 1 gave no sign in time (late, stopped, or never called): not done within the timeout of 2 s"
SIGNATURE, OTHER = (
    signature("all_reduce", name, dist.ReduceOp.SUM, torch.float32, N, None, 1, b"a schedule")
    for name in ("ring", "tree")
)


def call(
    ranks: Ranks, r: int, signature: bytes = SIGNATURE, n: int = N, algorithm: str = "ring"
) -> None:
    """An all-reduce."""
    schedule = build("all_reduce", algorithm, ranks.p)
    made = plan(schedule, r, schedule.cut(n))
    tensor, scratch, joined = torch.ones(n), torch.zeros(made.scratch), ranks.groups[r].transport
    execute(made, tensor, scratch, joined, dist.ReduceOp.SUM, signature)


def gives_up(ranks: Ranks) -> None:
    joined = ranks.groups[1].transport.mesh
    joined.begin(SIGNATURE)
    joined.fail(ValueError("planted"))
    joined.end()


def is_interrupted(ranks: Ranks, n: int = N) -> None:
    """Ctrl-C while it waits."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    joined = ranks.groups[1].transport.mesh
    joined.__class__ = type("Interrupted", (Mesh,), {"check_peers": interrupt})
    with pytest.raises(KeyboardInterrupt):
        call(ranks, 1, n=n)


def comes_late(ranks: Ranks) -> None:
    """While the others listen to what each has to say."""
    time.sleep(SECONDS + 0.5)
    with pytest.raises(RuntimeError, match=re.escape(NO_SIGN)):
        call(ranks, 1)


# What rank 1 does instead of its second call, and what the others say of it.
FAULTS: dict[str, tuple[Callable[[Ranks], object], str]] = {
    "gives up": (gives_up, "rank 1 failed by ValueError: planted"),
    "closes": (lambda ranks: ranks.groups[1].transport.mesh.close("it ends"), "rank 1"),
    "calls differently": (
        lambda ranks: call(ranks, 1, OTHER),
        "call differs from this rank's: algorithm",
    ),
    "has another size": (lambda ranks: call(ranks, 1, n=N + P), "bytes came, not"),
    "does not come": (lambda ranks: None, NO_SIGN),
    "comes when it is over": (comes_late, NO_SIGN),
    "is interrupted": (is_interrupted, "rank 1 failed by KeyboardInterrupt"),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_the_others_say_why(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    act, words = FAULTS[fault]
    ranks = Ranks(P, monkeypatch, seconds=SECONDS if words == NO_SIGN else LIMIT)
    assert ranks.run(lambda r: call(ranks, r)) == [None] * P  # makes the connections

    def once_more(r: int) -> object:
        if r == 1:
            return act(ranks)
        time.sleep(LATE if fault == "is interrupted" else 0.0)  # so that the first one waits
        return call(ranks, r)

    first, own, last = ranks.run(once_more)
    ranks.close()
    assert not isinstance(own, AssertionError), own
    for said in (first, last):
        assert isinstance(said, RuntimeError), said
        assert words in str(said)
        assert "in step " in str(said)


def test_a_rank_hears_the_abort_of_one_that_has_sent_half_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chunk is longer than what the system's buffers hold, and its receiver comes late."""
    n = 6 << 20
    ranks = Ranks(P, monkeypatch)

    def once(r: int) -> object:
        if r == 1:
            return is_interrupted(ranks, n)
        time.sleep(LATE)
        return call(ranks, r, n=n)

    ranks.run(lambda r: call(ranks, r))
    first, own, last = ranks.run(once)
    ranks.close()
    assert own is None
    for said in (first, last):
        assert "rank 1 failed by KeyboardInterrupt" in str(said)


def test_ranks_whose_first_calls_differ_are_told_although_some_never_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(4, monkeypatch)
    other = {1: {"signature": OTHER, "algorithm": "ring"}}
    seen = ranks.run(lambda r: call(ranks, r, **other.get(r, {"algorithm": "recursive_doubling"})))
    ranks.close()
    for said in seen:
        assert "call differs from this rank's: algorithm" in str(said)


def test_a_peer_that_does_not_listen_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(2, monkeypatch, seconds=SECONDS)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        ranks.groups[0].transport.mesh.addresses[1] = gone.getsockname()
    first, _ = ranks.run(lambda r: call(ranks, r))
    ranks.close()
    assert str(first) == "in step 0, sending to rank 1: [Errno 111] Connection refused"


MANY = 20


def test_all_of_many_ranks_hear_why_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(MANY, monkeypatch)
    schedule = build("all_reduce", "ring", MANY)

    def once(r: int) -> object:
        if r == 1:
            return gives_up(ranks)
        made, tensor = plan(schedule, r, schedule.cut(N)), torch.ones(N)
        return execute(
            made,
            tensor,
            torch.zeros(made.scratch),
            ranks.groups[r].transport,
            dist.ReduceOp.SUM,
            SIGNATURE,
        )

    seen = ranks.run(once)
    ranks.close()
    assert all(
        "rank 1 failed by ValueError: planted" in str(said) for r, said in enumerate(seen) if r != 1
    )


def test_ranks_that_all_fail_at_once_do_not_all_connect_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks, told = Ranks(MANY, monkeypatch), list[int]()
    monkeypatch.setattr(mesh, "send_to_all", lambda addresses, *_: told.append(len(addresses)))

    def fail(r: int) -> None:
        joined = ranks.groups[r].transport.mesh
        joined.begin(SIGNATURE)
        joined.fail(ValueError("planted"))
        joined.fail(ValueError("planted"))  # says nothing more
        joined.end()

    assert ranks.run(fail) == [None] * MANY
    ranks.close()
    # All with all would be MANY * (MANY - 1).
    assert 0 < sum(told) <= MANY * 2 * (MANY - 1).bit_length()
