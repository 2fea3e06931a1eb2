"""Check the NCCL path on this machine's GPUs in at most five minutes, and write one file to send back.

python -m collectives.bench.gpu_check [FILE]     what `make gpu-check` runs; it ends with 0 if all is well, with 1 if a
                                                 check failed, and with 2 where the machine has no GPU or no NCCL
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from collectives.backends import nccl
from collectives.backends.presence import need
from collectives.bench import Row, Settings, bench
from collectives.bench.environment import record
from collectives.bench.results import replace
from collectives.launch import launch

FILE = "gpu-check.json"
TOOLS = (
    ["nvidia-smi", "--query-gpu=index,name,memory.total,driver_version,compute_mode", "--format=csv"],
    ["nvidia-smi", "topo", "-m"],
)

# Seconds for each command and each part; together with the ranks' start less than five minutes.
TOOL_SECONDS = 10
SECONDS = {"one_gpu": 60, "algorithms": 120, "bandwidth": 80}

ALONE = "skipped: one GPU"

# Takes the number of GPUs, its seconds and what notes events; returns why it had nothing to do, if it had not.
Part = Callable[[int, int, Callable[[Row], None]], str | None]


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
    for name, part in PARTS.items():
        print(f"{name}: at most {SECONDS[name]} s", flush=True)
        report[name] = _timed(part, torch.cuda.device_count(), SECONDS[name])
        _write(file, report)
        print(f"    {report[name]['result']}", flush=True)
    print(f"The report is {file.resolve()}")
    return 0 if all(report[name]["result"] in ("ok", ALONE) for name in PARTS) else 1


def machine() -> Row:
    """Versions, GPUs, how they are connected, and what is set for NCCL."""
    ours = ("NCCL_", "TORCH_NCCL_", "CUDA_")
    variables = {name: value for name, value in os.environ.items() if name.startswith(ours)}
    versions = {"nccl": nccl.version(), "cuda": torch.version.cuda}
    return record() | versions | {"set": variables} | {" ".join(tool): _output(tool) for tool in TOOLS}


def _output(command: list[str]) -> list[str]:
    """The lines that a command prints, or why there are none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    return (done.stdout + done.stderr).splitlines()


def _timed(part: Part, gpus: int, seconds: int) -> Row:
    """What a part found; where it failed, what its ranks said last, and how far it came."""
    events: list[Row] = []

    def note(event: Row) -> None:
        if events and "begins" in events[-1]:
            del events[-1]  # it is over
        events.append(event)

    start = time.monotonic()
    try:
        alone = part(gpus, seconds, note)
        is_wrong = any(event.get("row", event).get("wrong") for event in events)
        result = alone or ("wrong results" if is_wrong else "ok")
    except (RuntimeError, ValueError, OSError) as error:
        result = "failed"
        events.append({"error": str(error).splitlines()})
    return {"result": result, "seconds": round(time.monotonic() - start, 1), "events": events}


def _checked(check: str, gpus: int, seconds: int, note: Callable[[Row], None]) -> None:
    """One check of `gpu_cases`."""
    settings = {"check": check, "over": "nccl"}
    launch("collectives.bench.gpu_cases", settings, gpus, timeout=seconds, on_event=note)


def _bandwidth(gpus: int, seconds: int, note: Callable[[Row], None]) -> str | None:
    """An all-reduce by some of our algorithms, beside NCCL's own."""
    if gpus == 1:
        return ALONE
    wanted = Settings(
        algorithms=["ring", "halving_doubling", "two_tree"],
        backends=["p2p_nccl", "nccl"],
        ranks=gpus,
        bytes=[64 << 10, 4 << 20, 64 << 20],
        repetitions=9,
        timeout=seconds,
    )
    for row in bench([wanted]).rows:
        note({"row": row})
        print(f"    {row['backend']:<9}{row['algorithm']:<18}{row['bytes']:>10} B {row['busbw']:>9.3f} GB/s busbw")
    return None


PARTS: dict[str, Part] = {
    "one_gpu": lambda _, seconds, note: _checked("one_gpu", 1, seconds, note),
    "algorithms": partial(_checked, "algorithms"),
    "bandwidth": _bandwidth,
}


def _write(file: Path, report: Row) -> None:
    """The whole report or none: a file that is there is complete."""
    text = json.dumps(report, indent=1) + "\n"
    replace(file, lambda path: path.write_text(text, encoding="utf8"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
