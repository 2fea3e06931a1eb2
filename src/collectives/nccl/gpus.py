"""Share this machine's GPUs among more ranks than there are GPUs, so that NCCL runs on one GPU.

NCCL tells hosts apart by NCCL_HOSTID, and before 2.30 it refuses two ranks of one host on a GPU. So
each rank on loopback is a host of its own, and messages go through sockets. A rank sees one GPU
alone (CUDA_VISIBLE_DEVICES).

CUDA's Multi-Process Service (MPS) runs the kernels of several processes side by side. Without it
the GPU gives each process a slice of about 2 ms in turn, and a kernel spins through its slice while
the other rank waits for one. Several ranks of one host on one GPU need NCCL 2.30 or newer, and few
thread blocks each, because all kernels have to fit.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

from collectives.processes import GRACE_SECONDS, ChildProcess, end, guarded, text

# Set for ranks that share a GPU: they sleep while they wait for it, because a spinning thread takes
# a core from a rank.
VARIABLE = "COLLECTIVES_SHARE_GPUS"

CONTROL = "nvidia-cuda-mps-control"
PLACES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
ASK_SECONDS = 10.0
START_SECONDS = 30.0

# It runs under a guard, which sends SIGTERM when the launcher has ended, however that ended.
SERVE = f"""
trap 'echo quit | {CONTROL} >&2; rm -rf "${PLACES[0]}"; exit' TERM
{CONTROL} -d >&2 || exit 1
echo started
while :; do sleep 3600 & wait $!; done
"""

# Threads of a rank that spin: the main one, which waits for the GPU, and that of NCCL's proxy.
SPINNING = 2
FEW_RANKS = 8  # of one GPU: up to so many have two thread blocks each, more have one

PRELOAD = "LD_PRELOAD"
WHEEL, LIBRARY = "nvidia-nccl-cu13", "nvidia/nccl/lib/libnccl.so.2"
SEVERAL = (2, 30)  # the first NCCL that allows several ranks of a host on one GPU


class Environments(NamedTuple):
    """Hold the variables that all ranks get, and those that each rank has for itself."""

    common: dict[str, str]
    own: list[dict[str, str]]


def visible() -> list[str]:
    """Return the GPUs that programs on this machine see: those in CUDA_VISIBLE_DEVICES, else all by their numbers."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [each.strip() for each in given.split(",") if each.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"],
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [
        str(number)
        for number in range(sum(line.startswith("GPU ") for line in listed.stdout.splitlines()))
    ]


def most(found: Sequence[str]) -> int:
    """Return the most ranks that can share these GPUs: one for each GPU, or for two cores of this machine."""
    return max(len(found), _cores() // SPINNING)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def need(ranks: int) -> list[str]:
    """Return the GPUs that ranks are to share.

    Raises ValueError for none, and for more ranks than the cores allow.
    """
    found = visible()
    if not found:
        raise ValueError(
            "GPUs to share: got none from nvidia-smi, expected one or more, or CUDA_VISIBLE_DEVICES"
        )
    if ranks > most(found):
        raise ValueError(
            f"ranks that share GPUs: got {ranks}, expected at most {most(found)} on {_cores()} cores, "
            "because two threads of each rank spin, the main one and that of NCCL's proxy"
        )
    return found


@contextmanager
def shared(
    hosts: Sequence[str], interface: str, link: tuple[float, float] | None = None
) -> Iterator[Environments]:
    """Share GPUs among ranks, of which ``hosts`` has the name of each one's host.

    Yield their variables.

    The ranks of a host see one GPU: host h the GPU h modulo the number of GPUs. Messages between
    hosts go through sockets of the network ``interface``. With a ``link`` of emulated hosts,
    seconds of latency and bytes/s, NCCL gets a topology file of it. A variable that the user has
    set keeps its value. Raises what `need` does, and ValueError where a host has several ranks and
    NCCL is older than 2.30.
    """
    ranks, names = len(hosts), list(dict.fromkeys(hosts))
    found = need(ranks)
    own = [{"NCCL_HOSTID": host} for host in hosts]
    common = {"NCCL_SOCKET_IFNAME": interface, "NCCL_IB_DISABLE": "1"}
    if len(names) < ranks:
        common |= several_ranks()
    if ranks > len(found):
        common |= {VARIABLE: "1", "NCCL_MAX_CTAS": "2" if ranks <= FEW_RANKS * len(found) else "1"}
    gpus = [{"CUDA_VISIBLE_DEVICES": found[names.index(host) % len(found)]} for host in hosts]
    with ExitStack() as stack:
        if link:
            from collectives.nccl import topology_file  # only emulated links need one

            folder = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="topology-", ignore_cleanup_errors=True)
                )
            )
            latency, rate = link
            cpu = topology_file.cpu_attributes()
            text = topology_file.topology_file(latency, rate, interface, cpu)
            (folder / "topology.xml").write_text(text + "\n")
            common[topology_file.VARIABLE] = str(folder / "topology.xml")
        made = Environments(
            _not_set(common), [_not_set(one) | gpu for one, gpu in zip(own, gpus, strict=True)]
        )
        if ranks > len(found):
            made = made._replace(common=made.common | stack.enter_context(mps()))
        yield made


def _not_set(variables: dict[str, str]) -> dict[str, str]:
    """Return what the user has not set; a preloaded library comes before those that he has."""
    return {
        name: value
        for name, value in variables.items()
        if name not in os.environ or name == PRELOAD
    }


def several_ranks() -> dict[str, str]:
    """Return the variables with which NCCL allows several ranks of one host on a GPU.

    The wheel's NCCL is preloaded, because torch finds its own by a path in its file. Raises
    ValueError for an old one.
    """
    version, path = _newest()
    if tuple(map(int, version.split(".")[:2])) < SEVERAL:
        raise ValueError(
            f"several ranks of a host on one GPU: got NCCL {version}, expected 2.30 or newer; "
            f"`pip install --upgrade --no-deps {WHEEL}`"
        )
    preloaded = " ".join(filter(None, (path, os.environ.get(PRELOAD))))
    return {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",  # NCCL 2.30 forgets to turn it off for some numbers of ranks
        **({PRELOAD: preloaded} if path else {}),
    }


def _newest() -> tuple[str, str]:
    """Return the version of the wheel's NCCL and its file.

    Where the wheel is absent, torch's version and no file.
    """
    try:
        wheel = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        import torch

        built = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
        return ".".join(map(str, torch.cuda.nccl.version())) if built else "0", ""  # type: ignore[no-untyped-call]
    return wheel.version, str(wheel.locate_file(LIBRARY))


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Have MPS serve processes until the block ends; yield the variables by which they find it.

    One that answers is used and stays. One that is started here has a folder of its own, and ends
    with the block, or with this process. One line on standard error says which, and if there is
    none that times mean nothing.
    """
    if shutil.which(CONTROL) is None:
        yield _without(f"{CONTROL} is not installed")
        return
    if _answers():
        _print("ranks share GPUs by the MPS that runs here")
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        places = dict.fromkeys(PLACES, folder)
        # MPS numbers anew the GPUs that it sees itself, so it has to see all.
        variables = {
            name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"
        } | places
        started: list[ChildProcess] = []
        with tempfile.TemporaryFile() as log:
            try:
                started.append(
                    ChildProcess(
                        guarded(["sh", "-c", SERVE]),
                        env=variables,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=log,
                    )
                )
                stdout = started[0].stdout
                if stdout and wait([stdout.fileno()], START_SECONDS) and stdout.readline():
                    _print(f"started MPS, by which ranks share GPUs, in {folder}")
                    yield places
                else:
                    yield _without(
                        " ".join(text(log).split()[-40:]) or f"no answer within {START_SECONDS:g} s"
                    )
            finally:
                end(started, GRACE_SECONDS)
                for process in started:
                    if process.stdout:
                        process.stdout.close()


def _answers() -> bool:
    """Return True if an MPS runs where this process would look for it: its folder may have outlived it."""
    try:
        asked = subprocess.run(
            [CONTROL],
            input=b"get_server_list\n",
            capture_output=True,
            timeout=ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def _without(reason: str) -> dict[str, str]:
    """Warn that there is no MPS, for this reason; return no variables."""
    _print(
        f"no MPS ({reason}): ranks take turns on a GPU in slices of about 2 ms, so their times mean nothing"
    )
    return {}


def _print(text: str) -> None:
    sys.stderr.write(f"collectives: {text}\n")
    sys.stderr.flush()
