"""The hub in rank 0's torchrun process: it forwards orders to the other processes, one order at a time."""

from contextlib import suppress
from queue import SimpleQueue
from threading import Lock

from collectives.launch.channel import Connection, Event

# Who connects: each torchrun process, and a launcher in the command that rank 0's process runs.
PROCESS, DRIVER = "process", "driver"
GONE = "rank {}: its torchrun process has ended"


class Hub:
    """Connections to torchrun's processes, by rank, and their answers."""

    def __init__(self) -> None:
        self.processes: dict[int, Connection] = {}
        self._answers: SimpleQueue[tuple[int, Event | None]] = SimpleQueue()
        self._one_order, self._orders = Lock(), 0

    def serve(self, connection: Connection, role: str, rank: int) -> None:
        """Serve one connection until it ends."""
        if role == DRIVER:
            if order := connection.receive():
                connection.send({"failed": self._execute(order)})
            return
        self.processes[rank] = connection
        while (answer := connection.receive()) is not None:
            self._answers.put((rank, answer))
        if self.processes[rank] is connection:  # and not a newer one, after the first was cut off
            self._answers.put((rank, None))

    def _execute(self, order: Event) -> str | None:
        """Send the order to the first ranks' processes; returns how the first one failed, or None."""
        with self._one_order:
            self._orders += 1
            left = set(range(order["ranks"]))
            for rank in left:
                try:
                    self.processes[rank].send({"nth": self._orders, **order})
                except OSError:
                    return GONE.format(rank)
            while left:
                rank, answer = self._answers.get()
                if answer is None:
                    return GONE.format(rank)
                if answer["nth"] == self._orders:  # a late answer to an earlier order that failed
                    left.discard(rank)
                    if answer["failed"]:
                        return f"rank {rank} {answer['failed']}"
        return None

    def end(self) -> None:
        """Tell the processes to end."""
        for connection in self.processes.values():
            with suppress(OSError):  # it has ended before
                connection.send({"over": True})
