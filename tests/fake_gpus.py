"""A machine with GPUs and MPS, of shell scripts: what `nvidia-smi` lists, and a control program that keeps a daemon."""

import os
import stat
from pathlib import Path

import pytest

SMI = """
for gpu in $(seq 0 $(({gpus} - 1))); do
    echo "GPU $gpu: NVIDIA H200 (UUID: GPU-$gpu)"
    echo "  MIG 1g.18gb     Device  0: (UUID: MIG-$gpu)"
done
"""

# As NVIDIA's: it finds its daemon by the folder of its pipes, which may outlive the daemon; -d
# daemonizes.
CONTROL = """
folder=${{CUDA_MPS_PIPE_DIRECTORY:-{default}}}
alive() {{ read -r daemon 2>/dev/null <"$folder/daemon" && kill -0 "$daemon" 2>/dev/null; }}
if [ "$1" = -d ]; then
    {refused}
    alive && {{ echo "An instance of this daemon is already running"; exit 1; }}
    mkdir -p "$folder"
    env | grep ^CUDA_VISIBLE_DEVICES >"$folder/sees"
    setsid sleep 1000 >/dev/null 2>&1 </dev/null &
    echo $! >"$folder/daemon"
    echo $! >>{daemons}
    exit 0
fi
read -r request
alive || {{ echo "Cannot find MPS control daemon process"; exit 1; }}
[ "$request" = quit ] && kill "$daemon"
exit 0
"""


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int = 1, refused: str = ""
) -> Path:
    """Put the programs first on the PATH.

    Returns the file in which the daemons' process numbers are.

    ``refused`` is what the control program prints instead of starting a daemon.
    """
    programs, daemons = folder / "programs", folder / "daemons"
    programs.mkdir()
    daemons.touch()
    refuse = f"echo '{refused}'; exit 1" if refused else ":"
    texts = {
        "nvidia-smi": SMI.format(gpus=gpus),
        "nvidia-cuda-mps-control": CONTROL.format(
            default=folder / "default", daemons=daemons, refused=refuse
        ),
    }
    for name, text in texts.items():
        path = programs / name
        path.write_text(f"#!/bin/sh{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    for name in [name for name in os.environ if name.startswith(("NCCL_", "CUDA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16))
    return daemons


def running(daemons: Path) -> list[int]:
    """The daemons that live."""
    return [int(pid) for pid in daemons.read_text().split() if lives(int(pid))]


def lives(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
