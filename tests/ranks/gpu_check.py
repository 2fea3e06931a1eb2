"""Check NCCL on this machine's GPUs in at most eight minutes, and write one file to send back.

Ranks share a GPU where there are more ranks than GPUs. They perform every algorithm in groups of 1
to all ranks, train, and time all-reduces: of NCCL and of ours, on loopback and on emulated hosts
(`gpu_cases`, `cut_cable`, `bench`).

python -m ranks.gpu_check [FILE]           what `make gpu-check` runs; it ends with 0 if all is
well, with 1 if a check
                                           failed, and with 2 where the machine has no GPU or no
                                           NCCL
python -m collectives_book.gpu_report FILE prints what is in the file
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from collectives.backends import nccl, need
from collectives.bench import Row
from collectives.bench.results import record, variables
from collectives.files import replace
from collectives.launch.request import TASKS_VARIABLE
from ranks import gpu_parts
from ranks.gpu_parts import Note

FILE = "gpu-check.json"
TOOLS = (
    [
        "nvidia-smi",
        "--query-gpu=index,name,memory.total,driver_version,compute_mode,power.limit",
        "--format=csv",
    ],
    ["nvidia-smi", "topo", "-m"],
    ["ps", "-C", "nvidia-cuda-mps-control", "-o", "pid,user,args"],
    ["df", "-h", "/dev/shm"],
    ["sysctl", "net.ipv4.tcp_congestion_control", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"],
)
TOOL_SECONDS = 4

# What all parts may take, and the least that a part needs to begin; with the tools less than eight
# minutes.
SECONDS, LEAST = 440, 15

SKIPPED = "skipped: "


class Part(NamedTuple):
    """Seconds that a part may take, and a function of them that notes events and returns why the part cannot run."""

    seconds: int
    run: Callable[[float, Note], str | None]


# What finds wrong results comes first, then what the page shows.
PARTS = {
    "one_gpu": Part(40, gpu_parts.one_gpu),
    "ddp": Part(45, gpu_parts.ddp),
    "algorithms": Part(100, gpu_parts.algorithms),
    "bandwidth": Part(60, gpu_parts.bandwidth),
    "slow_ring": Part(50, gpu_parts.slow("nccl:Ring")),
    "slow_tree": Part(50, gpu_parts.slow("nccl:Tree")),
    "slow_ours": Part(110, gpu_parts.slow("p2p_nccl")),
    "cut": Part(60, gpu_parts.cut),
    "loopback": Part(60, gpu_parts.loopback),
    "horovod": Part(45, gpu_parts.horovod),
    "slow_choice": Part(45, gpu_parts.slow("nccl")),
    "slow_choice_told": Part(45, gpu_parts.slow("nccl", told=True)),
    "two_hosts": Part(60, gpu_parts.two_hosts),
}


def main(arguments: list[str]) -> int:
    """Run all parts, and write the report after each; returns the exit status."""
    file = Path(arguments[0] if arguments else FILE)
    try:
        need("p2p_nccl")
        report: Row = {"machine": machine()}
        _write(file, report)
    except (ImportError, OSError) as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    end = time.monotonic() + SECONDS
    for name, part in PARTS.items():
        seconds = min(part.seconds, end - time.monotonic())
        print(f"{name}: at most {seconds:.0f} s", flush=True)
        report[name] = _timed(part, seconds)
        _write(file, report)
        print(f"    {report[name]['result']}", flush=True)
    print(f"The report is {file.resolve()}")
    return 0 if all(report[name]["result"].startswith(("ok", SKIPPED)) for name in PARTS) else 1


def machine() -> Row:
    """Return versions, GPUs, how they are connected, what is set for NCCL, and what the system allows."""
    versions = {"nccl": nccl.version(), "cuda": torch.version.cuda}
    return (
        record()
        | versions
        | {"set": variables()}
        | {" ".join(tool): _output(tool) for tool in TOOLS}
    )


def _output(command: list[str]) -> list[str]:
    """Return the lines that a command prints, or why there are none."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    return (done.stdout + done.stderr).splitlines()


def _timed(part: Part, seconds: float) -> Row:
    """Return what a part found, and if it failed, the last words of its ranks and how far it came."""
    events: list[Row] = []

    def note(event: Row) -> None:
        if events and "begins" in events[-1]:
            del events[-1]  # it is over
        events.append(event)

    start = time.monotonic()
    try:
        lacking = (
            part.run(seconds, note)
            if seconds >= LEAST
            else f"the {SECONDS} s of all parts are over"
        )
        is_wrong = any(event.get("row", event).get("wrong") for event in events)
        result = f"{SKIPPED}{lacking}" if lacking else "wrong results" if is_wrong else "ok"
    except (RuntimeError, ValueError, OSError, ImportError) as error:
        result = "failed"
        events.append({"error": str(error).splitlines()})
    return {"result": result, "seconds": round(time.monotonic() - start, 1), "events": events}


def _write(file: Path, report: Row) -> None:
    """Write the whole report or none: a file that is there is complete."""
    text = json.dumps(report, indent=1) + "\n"
    replace(file, lambda path: path.write_text(text, encoding="utf8"))


if __name__ == "__main__":
    folder = Path(__file__).parent
    os.environ[TASKS_VARIABLE] = gpu_parts.TASK
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    sys.exit(main(sys.argv[1:]))
