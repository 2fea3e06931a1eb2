"""One rank in the compiled loop, whose peers are sockets that the test holds."""

import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch

from collectives.engine.handshake import HEADER
from collectives.engine.kernels import kernels
from collectives.engine.program import Instruction, Recv, Send, Span, Task, Wait
from collectives.engine.tcp import execute, loop, state
from collectives.engine.tcp.state import flatten

CALL, SIGNATURE = 7, bytes(range(40))
N = 1 << 20
MOST_PAUSES = 300  # each of a tenth of a second


class Rank:
    """A rank with a connection to each peer, both ways over one socket; its elements are bytes."""

    def __init__(self, stack: ExitStack, peers: int = 1, send_buffer: int = 1 << 16) -> None:
        self.tensor = np.random.default_rng(3).integers(0, 256, N, dtype=np.uint8)
        self.links, self.descriptors = (
            state.new_links(peers),
            np.full(peers, state.NONE, state.DESCRIPTORS),
        )
        self.peers = [self._connect(stack, peer, send_buffer) for peer in range(peers)]
        self.listener, self.step_by_step, self.has_network = -1, False, False
        self.program: state.Flat
        self.state: state.LoopState

    def _connect(self, stack: ExitStack, peer: int, send_buffer: int) -> socket.socket:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            ours = stack.enter_context(socket.create_connection(server.getsockname()))
            theirs = stack.enter_context(server.accept()[0])
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        ours.setblocking(False)
        self.descriptors[peer] = ours.fileno()
        return theirs

    def begin(self, *each: Sequence[Instruction]) -> None:
        """Tasks that wait for no other."""
        self.program = flatten(tuple(Task(tuple(task), ()) for task in each))
        self.state = state.new_state(self.program, self.links, self.descriptors)
        self.table = state.addresses(self.program, self.state)
        HEADER.pack_into(self.state.header.data, 0, CALL, 0, 0, SIGNATURE)
        numbers = len(self.peers), self.listener, self.step_by_step, self.has_network, 1, 0
        state.CALL_FORMAT.pack_into(
            self.state.call,
            0,
            self.tensor.ctypes.data,
            0,
            *kernels(None, torch.uint8),
            *numbers,
        )

    def run(self) -> int:
        """What the loop gives: PAUSE after a tenth of a second."""
        return int(loop.run(self.table.ctypes.data, execute.PAUSE_AFTER))

    def wait(self, nanoseconds: int) -> int:
        """What waiting gives, for at most that time."""
        return int(loop.wait(self.program, self.state, loop.now(self.state.times) + nanoseconds))

    @property
    def failed(self) -> tuple[int, ...]:
        """Whether a connection has failed, whose, whether in sending, and why."""
        call = self.state.call[0]
        return tuple(
            int(call[name])
            for name in ("has_failed", "failed_peer", "failed_sending", "failed_why")
        )


def header(size: int, step: int = 0, call: int = CALL, signature: bytes = SIGNATURE) -> bytes:
    return HEADER.pack(call, step, size, signature)


def receive(size: int, number: int = 0, peer: int = 0, missing: int = 0) -> tuple[Instruction, ...]:
    """Receive that many bytes at the tensor's begin, or behind the ones of the message before."""
    return Recv(number, peer, 0, Span(number * size, (number + 1) * size)), Wait(number, missing)


def send(size: int, number: int = 0, peer: int = 0, step: int = 0) -> tuple[Instruction, ...]:
    return Send(number, peer, step, (Span(0, size),)), Wait(number)


def reset(peer: socket.socket) -> None:
    """Close it, so that the other end is told that the connection was reset."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def come(peer: Any, size: int) -> bytes:
    said = b""
    while len(said) < size:
        said += peer.recv(size - len(said)) or pytest.fail("closed")
    return said


def ended(rank: Rank, reader: threading.Thread) -> int:
    """How the loop ends, while a peer reads in this thread."""
    reader.start()
    status = next(
        (status for _ in range(MOST_PAUSES) if (status := rank.run()) != loop.PAUSE), loop.PAUSE
    )
    reader.join(MOST_PAUSES / 10)
    return status
