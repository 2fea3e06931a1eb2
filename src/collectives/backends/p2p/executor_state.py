"""How far the execution of a program is: what one executor hands over to the other."""

from __future__ import annotations

from typing import NamedTuple

from collectives.backends.p2p.connection import Message
from collectives.backends.p2p.program import Plan


class ExecutorState(NamedTuple):
    """Of each task: after how many others it comes still, its next instruction, and whether it is done.

    ``ready`` is a heap of tasks that may run; ``first`` is the first that is not done; ``messages`` are those that were
    sent or asked for, by number.
    """

    first: int
    ties: list[int]
    ready: list[int]
    at: list[int]
    done: bytearray
    messages: dict[int, Message]


def initial_state(plan: Plan) -> ExecutorState:
    """The state of a program that has not begun."""
    ready = [i for i, earlier in enumerate(plan.ties) if not earlier]
    return ExecutorState(0, list(plan.ties), ready, [0] * len(plan.program), bytearray(len(plan.program)), {})
