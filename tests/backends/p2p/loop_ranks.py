"""Ranks as threads of this process, each with connections of its own, for tests of the executors."""

import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from collectives.backends import Performed
from collectives.backends.p2p import local, peers
from collectives.backends.p2p.execute import execute
from collectives.backends.p2p.mesh import Mesh
from collectives.backends.p2p.prepared import Prepared
from collectives.backends.p2p.program import Plan
from collectives.backends.p2p.signature import NO_CALL

LIMIT = 60.0
_own = threading.local()  # whether the rank of a thread has the compiled loop


def follow(
    plan: Plan, tensor: torch.Tensor, scratch: torch.Tensor, joined: Mesh, op: Any, signature: bytes = NO_CALL
) -> str:
    """Execute a plan that no call has prepared; the executor that served it."""
    made = Prepared(plan, np.zeros(1, dtype=np.int64), signature, Performed("a plan"))
    return execute(made, tensor, scratch, joined, op)


class Ranks:
    """Ranks as threads of this process, each with a mesh of its own: over real connections, without a process group."""

    def __init__(self, p: int, patch: pytest.MonkeyPatch, seconds: float = LIMIT) -> None:
        self.p, self._told = p, dict[int, Any]()
        self._all = threading.Barrier(p)
        patch.setattr(peers, "introduce", self._introduce)
        _own.is_compiled = True
        assert local.loop()  # compiled here, not while ranks wait
        patch.setattr(local, "loop", lambda loop=local.loop: loop() if _own.is_compiled else None)
        options = SimpleNamespace(_timeout=timedelta(seconds=seconds))
        self.groups = [
            SimpleNamespace(rank=lambda r=r: r, size=lambda: p, _get_backend=lambda _: SimpleNamespace(options=options))
            for r in range(p)
        ]
        self.run(lambda r: setattr(self.groups[r], "mesh", Mesh(self.groups[r])), "p" * p)  # type: ignore[arg-type]

    def _introduce(self, listener: Any, group: Any, _: bool) -> tuple[list[tuple[str, int]], bytes, bool]:
        self._told[group.rank()] = listener.getsockname()
        self._all.wait(LIMIT)
        return [self._told[r] for r in range(self.p)], bytes(16), False

    def run(self, act: Callable[[int], Any], who: str) -> list[Any]:
        """What each rank returns or raises; ``who`` has a letter for each, "c" for those with the compiled loop."""
        seen: list[Any] = [None] * self.p

        def one(r: int) -> None:
            _own.is_compiled = who[r] == "c"
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
            group.mesh.close()
