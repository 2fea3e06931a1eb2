"""A cache that is bounded by bytes, not by entries: a program of small calls in turn keeps them all."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

# Bytes of each cache. A plan of eight ranks takes 30 KB, one of a ring of 512 takes 2 MB.
MOST = 128 << 20
Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Values by key, up to a limit of bytes; the least recently used is evicted first. Threads may share it."""

    def __init__(self, nbytes: Callable[[Value], int], most: int = MOST) -> None:
        self._nbytes, self._most, self._used = nbytes, most, 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable) -> Value | None:
        """Return the value of a key if it is there, for a thread that alone uses the cache."""
        if (found := self._values.get(key)) is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of the key; made, and kept, if it is not there."""
        with self._lock:
            if found := self._values.get(key):
                self._values.move_to_end(key)
                return found[0]
        value = make()
        with self._lock:
            self._keep(key, value)
        return value

    def _keep(self, key: Hashable, value: Value) -> None:
        if key not in self._values:  # another thread may have been faster
            self._values[key] = value, self._nbytes(value)
            self._used += self._values[key][1]
        while self._used > self._most and len(self._values) > 1:
            self._used -= self._values.popitem(last=False)[1][1]
