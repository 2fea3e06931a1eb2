"""Ranks as threads of this process, each with connections of its own, for tests of messages."""

import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from collectives.engine import mesh
from collectives.engine.handshake import NO_CALL
from collectives.engine.mesh import Mesh
from collectives.engine.program import Plan
from collectives.engine.tcp.execute import Tcp

LIMIT = 60.0


def call(
    plan: Plan,
    tensor: torch.Tensor,
    scratch: torch.Tensor,
    joined: Tcp,
    op: Any,
    signature: bytes = NO_CALL,
) -> None:
    """A call that executes a plan."""
    with joined.mesh.begin(signature):
        joined.execute(plan, tensor, scratch, op)


class Ranks:
    """Ranks as threads of this process, each with a mesh of its own: over real connections, without a process group."""

    def __init__(self, p: int, patch: pytest.MonkeyPatch, seconds: float = LIMIT) -> None:
        self.p, self._addresses = p, dict[int, Any]()
        self._all = threading.Barrier(p)
        patch.setattr(mesh, "exchange_addresses", self._exchange_addresses)
        patch.setattr(mesh, "global_ranks", lambda _: range(p))
        options = SimpleNamespace(_timeout=timedelta(seconds=seconds))
        self.groups = [
            SimpleNamespace(
                rank=lambda r=r: r,
                size=lambda: p,
                _get_backend=lambda _: SimpleNamespace(options=options),
            )
            for r in range(p)
        ]
        self.run(lambda r: setattr(self.groups[r], "transport", Tcp(Mesh(self.groups[r]))))  # type: ignore[arg-type]

    def _exchange_addresses(
        self, listener: Any, group: Any, _: bool
    ) -> tuple[list[tuple[str, int]], bytes, bool]:
        self._addresses[group.rank()] = listener.getsockname()
        self._all.wait(LIMIT)
        return [self._addresses[r] for r in range(self.p)], bytes(16), False

    def run(self, act: Callable[[int], Any]) -> list[Any]:
        """What each rank returns or raises."""
        seen: list[Any] = [None] * self.p

        def one(r: int) -> None:
            try:
                seen[r] = act(r)
            except (Exception, KeyboardInterrupt) as error:
                seen[r] = error

        threads = [threading.Thread(target=one, args=(r,), daemon=True) for r in range(self.p)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert not any(thread.is_alive() for thread in threads)
        return seen

    def close(self) -> None:
        for group in self.groups:
            group.transport.close("the test has ended")
