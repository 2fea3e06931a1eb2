"""Python's executor, over a mesh that only notes what it is asked: what runs before a rank waits."""

from types import SimpleNamespace

import pytest
import torch

from collectives.backends.p2p.compile import followers
from collectives.backends.p2p.connection import Message
from collectives.backends.p2p.execute import _execute_in_python
from collectives.backends.p2p.loop.arrays import flatten
from collectives.backends.p2p.program import AHEAD, Plan, Recv, Send, Span, Task, Wait

WHOLE = Span(0, 1)


def sent_before_the_wait(tasks: int, waiting: int) -> list[int]:
    """Of so many tasks one waits for a message, and every other one sends: those that have when the rank waits."""
    program = [Task((Send(number, 1, number, (WHOLE,)),), ()) for number in range(tasks)]
    program[waiting] = Task((Recv(waiting, 1, 0, WHOLE), Wait(waiting)), ())
    sent, before = list[int](), list[list[int]]()

    def send(peer: int, step: int, parts: list[memoryview]) -> Message:
        del parts
        sent.append(step)
        return Message(peer, 0, step, [], is_sent=True)

    def receive(peer: int, step: int, into: memoryview) -> Message:
        return Message(peer, 0, step, [into], is_sent=False)

    def wait(messages: list[Message]) -> None:
        before.append(sent.copy())
        messages[0].advance(messages[0].left)

    mesh, tensor = SimpleNamespace(send=send, receive=receive, wait=wait), torch.zeros(1)
    plan = Plan(tuple(program), followers(tuple(program)), 0, True, False, flatten(tuple(program)), {1: 0})
    _execute_in_python(plan, tensor, tensor, mesh, None, None)  # type: ignore[arg-type]
    assert len(sent) == tasks - 1
    (once,) = before
    return once


@pytest.mark.parametrize("waiting", [0, 1, AHEAD, AHEAD + 1])
def test_every_task_that_may_begin_has_run_before_a_rank_waits(waiting: int) -> None:
    """That is up to AHEAD behind the one that waits, also where tasks before it have just let them begin."""
    may_begin = [*range(waiting), *range(waiting + 1, waiting + AHEAD)]
    assert sent_before_the_wait(waiting + 2 * AHEAD, waiting) == may_begin
