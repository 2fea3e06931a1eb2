"""Messages that travel in a wire's format: encoded when they are sent, decoded when they have arrived."""

from __future__ import annotations

from collections.abc import Callable

import torch

from collectives.backends.coding import decode, encode
from collectives.backends.p2p.connection import Message
from collectives.backends.p2p.mesh import Mesh
from collectives.backends.p2p.program import Instruction, Recv, Send, Span, Wait
from collectives.wire import WIRES

Execute = Callable[[Instruction], tuple[Message, int] | None]


def coded_executor(
    wire: str, tensor: torch.Tensor, scratch: torch.Tensor, joined: Mesh, messages: dict[int, Message], plain: Execute
) -> Execute:
    """A function that executes one instruction, as `execute.execute` needs it; ``plain`` does what sends nothing.

    The tensors are float32, and every span has whole blocks. What is sent is rounded in the sender's tensor, too.
    """
    arriving: dict[int, tuple[torch.Tensor, Span]] = {}
    encoded: dict[tuple[Span, ...], torch.Tensor] = {}  # what was sent since the tensor was last written

    def view(span: Span) -> torch.Tensor:
        return (scratch if span.scratch else tensor)[span.start : span.stop]

    def send(do: Send) -> None:
        if do.spans not in encoded:
            encoded[do.spans] = _encoded(wire, [view(span) for span in do.spans])
        messages[do.number] = joined.send(do.peer, do.step, [encoded[do.spans].numpy().data])

    def receive(do: Recv) -> None:
        coded = torch.empty(WIRES[wire].nbytes(do.into.stop - do.into.start), dtype=torch.uint8)
        arriving[do.number] = coded, do.into
        messages[do.number] = joined.receive(do.peer, do.step, coded.numpy().data)

    def wait(do: Wait) -> tuple[Message, int] | None:
        if messages[do.number].left:
            return messages[do.number], 0
        if do.number in arriving:
            coded, into = arriving.pop(do.number)
            view(into).copy_(decode(wire, coded))
            encoded.clear()
        return None

    def execute_instruction(instruction: Instruction) -> tuple[Message, int] | None:
        if isinstance(instruction, Wait):
            return wait(instruction)
        if isinstance(instruction, Send):
            send(instruction)
        elif isinstance(instruction, Recv):
            receive(instruction)
        else:
            plain(instruction)
            encoded.clear()
        return None

    return execute_instruction


def _encoded(wire: str, values: list[torch.Tensor]) -> torch.Tensor:
    """One message of these values, which become what it carries of them."""
    coded = encode(wire, torch.cat(values))
    for value, kept in zip(values, torch.split(decode(wire, coded), [*map(len, values)]), strict=True):
        value.copy_(kept)
    return coded
