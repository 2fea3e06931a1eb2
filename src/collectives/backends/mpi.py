"""MPI's collectives through mpi4py, on CPU tensors and on ranks that the library's own launcher started.

It has all eight. One mpi4py serves Open MPI (`mpi`), MPICH (`mpich`) and Intel MPI (`impi`).
"""

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Any

from collectives.algorithms import FOREST, PURPLE, WINE, Mark
from collectives.backends import Backend
from collectives.backends.open_mpi import UCX, UCX_VARIABLES, chosen, communicator
from collectives.engine.call import Call, Performed
from collectives.launch.programs import mpirun_version, need_mpirun

ITS_OWN = ("auto", "default")  # the choice of the library
POLL_SECONDS = 0.001


class _ByMpi4py(Backend):
    """Perform MPI's collectives; the library picks the algorithm."""

    takes_overlapping = False  # MPI forbids it but by MPI_IN_PLACE
    joins_group = False  # the launcher's ranks meet in MPI
    collectives = (
        "broadcast",
        "scatter",
        "gather",
        "all_gather",
        "reduce",
        "reduce_scatter",
        "all_reduce",
        "all_to_all",
    )
    dtypes = ("float32", "float64", "int32", "int64")
    ops = ("sum", "prod", "max", "min")

    def version(self) -> str:
        """Return the versions of mpi4py and of the library.

        Raises ImportError where one of them is absent.
        """
        library = self.library()
        try:
            return f"mpi4py {metadata.version('mpi4py')}, {library}"
        except metadata.PackageNotFoundError:
            raise ImportError("mpi4py is not installed; `pip install mpi4py`") from None

    @abstractmethod
    def library(self) -> str:
        """Return the library's name and version. Raises ImportError where its launcher is absent."""

    def devices(self) -> str:
        """Return the cores of this machine, as text."""
        return f"{os.cpu_count()} CPU cores"

    def perform(self, call: Call) -> Performed:
        """Perform the collective by MPI's function of that name, among all ranks."""
        return self.bind(call)()

    def bind(self, call: Call) -> Callable[[], Performed]:
        """Return what performs this call by MPI's function, with the arrays that mpi4py's programs have anyway."""
        group, name, arguments = _function(_started(), call)
        function, performed = getattr(group, name), Performed(call.algorithm)

        def perform() -> Performed:
            function(*arguments)
            return performed

        return perform

    @contextmanager
    def prepare(self, call: Call) -> Iterator[Callable[[], None]]:
        """Prepare MPI's persistent collective of that name, which each call starts and waits for, within a ``with``."""
        group, name, arguments = _function(_started(), call)
        request = getattr(group, f"{name}_init")(*arguments)

        def perform() -> None:
            request.Start()
            request.Wait()

        try:
            yield perform
        finally:
            request.Free()

    def flush(self) -> None:
        """Wait until every rank has what this one has sent; all ranks call it, after a collective.

        Open MPI may return while data still wait here for room in a socket, and it progresses only
        inside MPI calls: a rank that then blocks elsewhere can deadlock its peers. A barrier
        flushes them: no rank leaves it before all are in it. The barrier's own messages are in the
        same danger only while they connect, the first time.
        """
        _connected()
        _meet()


class OpenMpi(_ByMpi4py):
    """Perform Open MPI's collectives, an all-reduce also by one of its components or algorithms (`open_mpi`)."""

    launcher = "mpirun"
    packages = ("mpi4py", "openmpi")
    title = "Open MPI"
    mark = PURPLE

    def library(self) -> str:
        """Return the version that mpirun prints."""
        need_mpirun()
        return mpirun_version()

    def variables(self, algorithm: str, collective: str) -> dict[str, str]:
        """Return the variables of UCX, which carries all messages of a process; for others a call names its algorithm.

        Raises ValueError for an algorithm that Open MPI does not have.
        """
        component, _ = chosen(algorithm)
        if component == UCX:
            return UCX_VARIABLES
        if collective != "all_reduce":
            raise ValueError(
                f"{self.name} takes an algorithm for all_reduce only, so not '{self.name}:{algorithm}' for {collective}"
            )
        return {}


class OfHydra(_ByMpi4py):
    """Perform the collectives of a library whose launcher is Hydra, in a folder of COLLECTIVES_MPI."""

    on_emulated_hosts = False
    busy_polls = True
    packages = ("mpi4py",)

    def __init__(self, name: str, title: str, mark: Mark) -> None:
        self.launcher, self.title, self.mark = name, title, mark
        super().__init__(name)

    def library(self) -> str:
        """Return the library's name and version."""
        from collectives.launch import hydra  # for the others it is not loaded

        return hydra.need(self.name).version

    def record(self) -> dict[str, Any]:
        """Return the library's name and version."""
        return {self.name: self.library()}


MPI = OpenMpi("mpi")
MPICH = OfHydra("mpich", "MPICH", FOREST)
INTEL_MPI = OfHydra("impi", "Intel MPI", WINE)


def _function(mpi: Any, call: Call) -> tuple[Any, str, tuple[Any, ...]]:
    """Return a communicator, the name of its method that performs the call, and the method's arguments."""
    world, root = mpi.COMM_WORLD, call.root
    match call.collective:
        case "all_reduce":
            chosen = world if call.algorithm in ITS_OWN else communicator(mpi, call.algorithm)
            return (
                chosen,
                "Allreduce",
                (mpi.IN_PLACE, call.flat_output().numpy(), _op(mpi, call.op)),
            )
        case "broadcast":
            return world, "Bcast", (call.flat_output().numpy(), root)
        case "reduce":
            mine = call.flat_input().numpy()
            given, wanted = (mpi.IN_PLACE, mine) if world.rank == root else (mine, None)
            return world, "Reduce", (given, wanted, _op(mpi, call.op), root)
        case "scatter":
            given = call.flat_input().numpy() if world.rank == root else None
            return world, "Scatter", (given, call.flat_output().numpy(), root)
        case "gather":
            wanted = call.flat_output().numpy() if world.rank == root else None
            return world, "Gather", (call.flat_input().numpy(), wanted, root)
        case "all_gather":
            return world, "Allgather", (call.flat_input().numpy(), call.flat_output().numpy())
        case "reduce_scatter":
            given, wanted = call.flat_input().numpy(), call.flat_output().numpy()
            return world, "Reduce_scatter_block", (given, wanted, _op(mpi, call.op))
        case "all_to_all" if call.splits is None:
            return world, "Alltoall", (call.flat_input().numpy(), call.flat_output().numpy())
        case "all_to_all":
            sent, received = call.splits or ((), ())
            arguments = (
                [call.flat_input().numpy(), list(sent)],
                [call.flat_output().numpy(), list(received)],
            )
            return world, "Alltoallv", arguments
        case _:
            raise ValueError(f"mpi does not perform {call.collective!r}")


@cache
def _connected() -> None:
    _meet()


def _meet() -> None:
    """Wait for all ranks, and yield the processor to those that have not arrived yet."""
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
