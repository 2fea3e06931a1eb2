"""Check the NCCL path on this machine's GPUs in at most five minutes, and write one file to send back.

Its ranks perform every algorithm in groups of 1 to all ranks, several streams on one GPU, and training by
DistributedDataParallel. Where the machine has one GPU, two ranks share it for that.

python tests/ranks/gpu_check.py [FILE]     what `make gpu-check` runs; it ends with 0 if all is well, with 1 if a check
                                           failed, and with 2 where the machine has no GPU or no NCCL
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import collectives.torch_backend  # noqa: F401  torch knows the name from now on
from collectives.algorithms import executable
from collectives.backends import backend, nccl, need
from collectives.bench import Row, Settings, bench
from collectives.bench.measure import OPS, gathered, reduced, share, values
from collectives.bench.results import record, variables
from collectives.bench.settings import DTYPES
from collectives.contracts import REDUCING
from collectives.engine.call import Call
from collectives.engine.compile import as_plan
from collectives.engine.group import perform
from collectives.engine.nccl import execute_in_batches
from collectives.engine.program import Recv, Reduce, Send, Span, Task, Wait
from collectives.files import replace
from collectives.launch import launch
from collectives.launch.request import TASKS_VARIABLE
from collectives.schedule import Ints, parts

TASK = Path(__file__).stem
FILE = "gpu-check.json"
TOOLS = (
    ["nvidia-smi", "--query-gpu=index,name,memory.total,driver_version,compute_mode", "--format=csv"],
    ["nvidia-smi", "topo", "-m"],
)

# Seconds for each command and each part; together with the ranks' start less than five minutes.
TOOL_SECONDS = 10
SECONDS = {"one_gpu": 40, "algorithms": 100, "ddp": 60, "bandwidth": 70}

ALONE = "skipped: one GPU"

# Elements, op, dtype and segments: none, fewer than ranks, and a number that few numbers of ranks divide.
VARIANTS = (
    (0, "sum", "float32", None),
    (1, "avg", "float32", None),
    (37, "sum", "int64", 3),
    (37, "avg", "bfloat16", 2),
    (1009, "max", "float16", None),
)

# On one GPU: elements that a kernel takes long enough for that two streams overlap, and calls on each stream.
LONG = 1 << 22
CALLS = 20

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
    versions = {"nccl": nccl.version(), "cuda": torch.version.cuda}
    return record() | versions | {"set": variables()} | {" ".join(tool): _output(tool) for tool in TOOLS}


def _output(command: list[str]) -> list[str]:
    """The lines that a command prints, or why there are none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    return (done.stdout + done.stderr).splitlines()


def _timed(part: Part, gpus: int, seconds: int) -> Row:
    """Return what a part found, and if it failed, the last words of its ranks and how far it came."""
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
    """One check of the ranks (`run`)."""
    settings = {"check": check, "over": "nccl"}
    launch(TASK, settings, gpus, timeout=seconds, on_event=note)


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
    "ddp": lambda _, seconds, note: _checked("ddp", RANKS, seconds, note),
    "bandwidth": _bandwidth,
}


def _write(file: Path, report: Row) -> None:
    """The whole report or none: a file that is there is complete."""
    text = json.dumps(report, indent=1) + "\n"
    replace(file, lambda path: path.write_text(text, encoding="utf8"))


class CheckedCall(NamedTuple):
    """One collective: ``n`` elements of the whole tensor, or of each rank's part; ``root`` is a rank in the group."""

    collective: str
    algorithm: str
    n: int
    op: str
    dtype: str
    segments: int | None
    root: int


def cases(p: int) -> Iterator[CheckedCall]:
    """Every algorithm on ``p`` ranks in all variants, each time from another root; what does not reduce, sums only.

    >>> print(next(cases(4)))
    CheckedCall(collective='broadcast', algorithm='flat', n=0, op='sum', dtype='float32', segments=None, root=0)
    """
    for root, ((collective, algorithm), (n, op, dtype, segments)) in enumerate(product(executable(), VARIANTS)):
        if op == "sum" or collective in REDUCING:
            yield CheckedCall(collective, algorithm, n, op, dtype, segments, root % p)


def begin(
    case: CheckedCall, p: int, rank: int, group: dist.ProcessGroup, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Call for one rank: its output, which the GPU may have yet to write, and on the CPU what it must be."""
    given, wanted = _data(case, p, rank)
    dtype = getattr(torch, case.dtype)
    mine = None if given is None else torch.tensor(given, dtype=dtype, device=device)
    output = None if wanted is None else torch.empty(len(wanted), dtype=dtype, device=device)
    if case.collective in ("all_reduce", "reduce", "broadcast"):
        output = mine
    perform(
        Call(case.collective, output, mine, OPS[case.op], case.root, group, case.algorithm, case.segments),
    )
    expected = None if wanted is None else torch.from_numpy(wanted).to(dtype)
    if expected is not None and case.op == "avg" and (case.collective != "reduce" or rank == case.root):
        expected.div_(p, rounding_mode=None if dtype.is_floating_point else "trunc")
    return output, expected


def _data(case: CheckedCall, p: int, rank: int) -> tuple[Ints | None, Ints | None]:
    """One rank's input and output; None where it has none. In a reduce the other ranks keep what they have."""
    exact, whole = DTYPES[case.dtype][1], case.n * (p if parts(case.collective, p) > 1 else 1)

    def given(of: int, length: int, first: int) -> Ints:
        return values(of, length, case.op, p, exact, first)

    def total(length: int, first: int) -> Ints:
        return reduced(length, case.op, p, exact, first)

    join: Callable[[list[Ints]], Ints] = np.concatenate
    mine, wanted = share(case.collective, whole, rank, p, case.root, given, total, join)
    if case.collective == "reduce" and wanted is None:
        return mine, mine
    return mine, wanted


def on_two_streams(group: dist.ProcessGroup, device: torch.device, n: int = LONG) -> list[tuple[torch.Tensor, Ints]]:
    """Calls on two streams in turn, none of which waits for the other: outputs, and what each must be.

    A reduce-scatter moves its input through scratch memory, also on one rank. Scratch memory that both streams use
    mixes their data.
    """
    p, rank = dist.get_world_size(group), dist.get_rank(group)
    inputs = [values(rank, p * n, "sum", p, DTYPES["float32"][1] // 2) * times for times in (1, 2)]
    mine = [torch.tensor(each, dtype=torch.float32, device=device) for each in inputs]
    total = reduced(n, "sum", p, DTYPES["float32"][1] // 2, rank * n)
    streams = [torch.cuda.Stream(device) for _ in range(2)]  # type: ignore[no-untyped-call]
    outputs = []
    torch.cuda.synchronize(device)
    for call in range(2 * CALLS):
        which = call % 2
        with torch.cuda.stream(streams[which]):
            output = torch.empty(n, dtype=torch.float32, device=device)
            perform(Call("reduce_scatter", output, mine[which], OPS["sum"], None, group, "ring"))
            outputs.append((output, total * (1 + which)))
    torch.cuda.synchronize(device)
    return outputs


def to_itself(group: dist.ProcessGroup, device: torch.device, n: int = LONG) -> list[tuple[torch.Tensor, Ints]]:
    """A rank sends to itself and adds what arrives, again and again: each time its stream has to wait for NCCL's."""
    whole, aside = Span(0, n), Span(0, n, scratch=True)
    me = dist.get_rank(group)
    task = Task((Send(0, me, 0, (whole,)), Recv(1, me, 0, aside), Wait(1), Reduce(whole, (whole, aside)), Wait(0)), ())
    doubled = as_plan((task,), n)
    mine = np.arange(n) % 1009
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        tensor = torch.tensor(mine, dtype=torch.float32, device=device)
        scratch = torch.empty(n, dtype=torch.float32, device=device)
        for _ in range(10):
            execute_in_batches(doubled, tensor, scratch, group, OPS["sum"], 1)
    torch.cuda.synchronize(device)
    return [(tensor, mine << 10)]


def run(settings: Row, report: Callable[[Row], None]) -> None:
    """Check what the settings under "check" name: "one_gpu"; "algorithms" or "ddp" over "nccl" or, on CPUs, "gloo"."""
    if settings["check"] == "ddp":
        share_gpus(dist.get_rank(), torch.cuda.device_count())
    device = backend(settings["over"]).device()
    if settings["check"] == "one_gpu":
        _one_gpu(nccl.group(), device, report)
        return
    if settings["check"] == "ddp":
        wrong = differing(settings["over"], device)
        report({"check": "ddp", "steps": STEPS, "wrong": wrong})
        return
    for p in range(1, dist.get_world_size() + 1):
        _algorithms(p, settings["over"], device, report)


def _one_gpu(group: dist.ProcessGroup, device: torch.device, report: Callable[[Row], None]) -> None:
    for check in (to_itself, on_two_streams):
        report({"begins": check.__name__})
        found = [(output.cpu().numpy() != expected).sum() for output, expected in check(group, device)]
        report({"check": check.__name__, "calls": len(found), "wrong": int(sum(found))})


def _algorithms(p: int, over: str, device: torch.device, report: Callable[[Row], None]) -> None:
    """All cases in a group of rank 0 and the last ``p - 1`` ranks, which have other numbers in it than outside."""
    everyone = dist.get_world_size()
    members = [0, *range(everyone - p + 1, everyone)]
    group = dist.new_group(members, backend=over)
    count, wrong = 0, []
    if dist.get_rank() in members:
        for case in cases(p):
            count += 1
            report({"begins": str(case), "ranks": p})
            output, expected = begin(case, p, dist.get_rank(group), group, device)
            if output is not None and expected is not None and not torch.equal(output.cpu(), expected):
                wrong.append(f"{case} on rank {dist.get_rank(group)} of {p}")
        dist.destroy_process_group(group)
    report({"ranks": p, "cases": count, "wrong": [*chain.from_iterable(gathered(wrong, device))]})


RANKS = 2  # a sum of two numbers has one value in either order, so equal means bit for bit
STEPS = 12


def share_gpus(rank: int, gpus: int) -> None:
    """Have ranks share a GPU where there are fewer than ranks; a rank calls it before it uses one.

    NCCL refuses two ranks of one host on one GPU. With a host's name for each rank it takes them for two hosts, which
    talk by sockets.
    """
    if gpus < RANKS:
        alone = {"NCCL_HOSTID": f"gpu-check-{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        os.environ.update(alone, LOCAL_RANK="0")


def differing(over: str, device: torch.device) -> int:
    """Return the number of parameters that differ after training over ours and over "nccl" or, on CPUs, "gloo"."""
    ours, theirs = (_trained(name, device) for name in ("collectives", over))
    return sum(int((mine != other).sum()) for mine, other in zip(ours, theirs, strict=True))


def _trained(over: str, device: torch.device) -> list[torch.Tensor]:
    """Train a model in a group of its own; its buckets are small, so that reductions overlap with the backward pass."""
    group = dist.new_group(backend=over)
    torch.manual_seed(7)
    layers = torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 8)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device), process_group=group, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    random = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(64, 64, generator=random).to(device)).square().mean().backward()
        optimizer.step()
    trained = [each.detach().cpu() for each in model.parameters()]
    del model, optimizer
    dist.destroy_process_group(group)
    return trained


if __name__ == "__main__":
    os.environ[TASKS_VARIABLE] = TASK
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    sys.exit(main(sys.argv[1:]))
