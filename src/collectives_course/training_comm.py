"""What a rank of a training run calls: all_reduce, which goes on while the rank computes, broadcast, and compute."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives_course.comm import CommError, Connection

Array = NDArray[np.floating[Any]]


class Handle:
    """An all_reduce under way. ``wait()`` returns when the sum over all ranks has replaced the buffer's values."""

    def __init__(self, comm: "TrainingComm", number: int, into: Array) -> None:
        self._comm, self._number, self._into = comm, number, into
        self._done = False

    def wait(self) -> None:
        """Wait for the sum. A second call does nothing."""
        if not self._done:
            self._into[...] = self._comm.receive(self._number).reshape(self._into.shape)
            self._done = True


class TrainingComm(Connection):
    """A rank's connection to the other ranks of a training run.

    ``rank`` and ``size`` say who it is, and of how many. Buffers are torch tensors or numpy arrays of floats, of any
    shape. All ranks start the same collectives, of the same sizes, in the same order.

    ``all_reduce(buffer)`` sends the buffer's present values and returns a `Handle` at once.
    ``broadcast(buffer, src)`` returns when the values of rank ``src`` have replaced the buffer's.
    ``time()`` is the rank's clock. The network carries one collective after another, each when all ranks have started
    it and the one before has ended. Computing and communication go on at the same time.
    """

    def all_reduce(self, buffer: Any) -> Handle:
        """Start the sum of all ranks' buffers."""
        return self._start("all_reduce", buffer, 0)

    def broadcast(self, buffer: Any, src: int) -> None:
        """Replace the buffer's values by those of rank ``src``."""
        if src not in range(self.size):
            raise CommError(f"rank {self.rank}: src: got {src!r}, expected a rank from 0 to {self.size - 1}")
        self._start("broadcast", buffer, int(src)).wait()

    def compute(self, layer: int, phase: str) -> float:
        """Let the machine compute a layer, "forward" or "backward": the clock goes on.

        The network asks this for each of its layers. The answer is the factor of the gradient that comes back through
        the layer, so no gradient can be known earlier.
        """
        return float(self._told(op="compute", layer=layer, phase=phase)["factor"])

    def receive(self, number: int) -> Array:
        """Wait for the result of a collective, by its number."""
        result: Array = self._told(op="wait", number=number)["array"]
        return result

    def _start(self, kind: str, buffer: Any, src: int) -> Handle:
        array = _floats(buffer)
        told = self._told(op="start", kind=kind, array=array, src=src)
        return Handle(self, told["number"], array)


def _floats(buffer: Any) -> Array:
    """The buffer as an array that shares its memory."""
    array = buffer.detach().numpy() if hasattr(buffer, "detach") else buffer
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        raise CommError(f"buffer: got {type(buffer).__name__}, expected a tensor or an array of floats")
    return array
