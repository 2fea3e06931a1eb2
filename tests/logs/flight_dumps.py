"""Dumps of a flight recorder as PyTorch writes them: programs that block are played, with faults in them or not."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "barrier",
    "reduce",
)
OTHERS = {"Float": "BFloat16", "BFloat16": "Half", "Half": "Float"}


class Step(NamedTuple):
    """A call of all ranks of a group, or of one end of a message."""

    group: str
    operation: str
    n: int
    dtype: str
    line: int
    ends: tuple[int, int] | None = None  # as ranks of the job


Programs = dict[int, list[Step]]
Dumps = dict[int, dict[str, Any]]


class Job(NamedTuple):
    """Its groups, and what each rank calls."""

    groups: dict[str, tuple[str, tuple[int, ...]]]
    programs: Programs


def job(p: int, seed: int, steps: int = 30) -> Job:
    """A program without a fault: collectives of the default group, of a second one, of halves, and messages."""
    chance = random.Random(seed)
    groups = {"0": ("default_pg", (*range(p),)), "7": ("dp", (*range(p),))}
    if p >= 4:
        groups |= {"8": ("tp", (*range(p // 2),)), "9": ("tp", (*range(p // 2, p),))}
    programs: Programs = {rank: [] for rank in range(p)}
    for line in range(10, 10 + steps):
        n, dtype = chance.randrange(1, 50), chance.choice([*OTHERS])
        if p > 1 and chance.random() < 0.3:
            ends = sender, receiver = chance.sample(range(p), 2)
            programs[sender].append(Step("0", "send", n, dtype, line, (*ends,)))
            programs[receiver].append(Step("0", "recv", n, dtype, line, (*ends,)))
            continue
        name = chance.choice([*groups])
        step = Step(name, chance.choice(COLLECTIVES), n, dtype, line)
        for rank in groups[name][1]:
            programs[rank].append(step)
    last = Step("0", "all_reduce", 8, "Float", 99)
    for program in programs.values():
        program.append(last)
    return Job(groups, programs)


def play(of: Job) -> dict[int, list[tuple[Step, str]]]:
    """What each rank called and in which state that is: a call completes when all its ranks are in it alike."""
    at = dict.fromkeys(of.programs, 0)
    counts: dict[tuple[Any, ...], int] = {}
    told: dict[int, list[tuple[Step, str]]] = {rank: [] for rank in of.programs}
    inside: dict[tuple[Any, ...], dict[int, Step]] = {}
    keys: dict[int, tuple[Any, ...]] = {}
    moved = True
    while moved:
        moved = False
        for rank, program in of.programs.items():
            if rank in keys or at[rank] == len(program):
                continue
            step = program[at[rank]]
            place = (step.group, step.ends) if step.ends else (step.group,)
            number = counts[place, rank] = counts.get((place, rank), 0) + 1
            keys[rank] = (*place, number)
            inside.setdefault(keys[rank], {})[rank] = step
            told[rank].append((step, "started"))
            moved = True
            members = step.ends or of.groups[step.group][1]
            there = inside[keys[rank]]
            if (
                set(there) == set(members)
                and len(
                    {
                        each._replace(operation="", line=0) if each.ends else each._replace(line=0)
                        for each in there.values()
                    }
                )
                == 1
            ):
                for member in there:
                    told[member][-1] = (there[member], "completed")
                    at[member] += 1
                    del keys[member]
    return told


def dumps(of: Job, back_end: str = "nccl") -> Dumps:
    """What PyTorch would write on each rank."""
    played = play(of)
    return {rank: _dump(of, rank, calls, back_end) for rank, calls in played.items()}


def _dump(of: Job, rank: int, calls: Iterable[tuple[Step, str]], back_end: str) -> dict[str, Any]:
    mine = {name: each for name, each in of.groups.items() if rank in each[1]}
    numbers, messages = dict.fromkeys(mine, 0), dict.fromkeys(mine, 0)
    entries = []
    for record, (step, state) in enumerate(calls):
        numbers[step.group] += not step.ends
        messages[step.group] += bool(step.ends)
        ranks = of.groups[step.group][1]
        inputs, outputs = sizes(step, len(ranks))
        entries.append(
            {
                "record_id": record,
                "pg_id": [*mine].index(step.group),
                "process_group": (step.group, of.groups[step.group][0]),
                "collective_seq_id": numbers[step.group],
                "p2p_seq_id": messages[step.group],
                "op_id": record + 1,
                "profiling_name": f"{back_end}:{name_of(step, ranks)}",
                "time_created_ns": 10**18 + record,
                "input_sizes": inputs,
                "input_dtypes": [step.dtype] * len(inputs),
                "output_sizes": outputs,
                "output_dtypes": [step.dtype] * len(outputs),
                "state": state,
                "time_discovered_started_ns": 10**18 + record + 1,
                "time_discovered_completed_ns": 10**18 + record + 2
                if state == "completed"
                else None,
                "retired": state == "completed",
                "timeout_ms": 600_000,
                "is_p2p": bool(step.ends),
                "frames": [
                    {
                        "name": step.operation,
                        "filename": "/x/torch/distributed/distributed_c10d.py",
                        "line": 3245,
                    },
                    {"name": "step", "filename": "train.py", "line": step.line},
                ],
            }
        )
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": str([*ranks])}
            for name, (desc, ranks) in mine.items()
        },
        "pg_status": {},
        "comm_lib_version": "2.27",
        "entries": entries,
    }


def name_of(step: Step, ranks: tuple[int, ...]) -> str:
    if not step.ends:
        return step.operation
    a, b = (ranks.index(end) for end in step.ends)
    return f"send {a}->{b}" if step.operation == "send" else f"recv {b}<-{a}"


def sizes(step: Step, p: int) -> tuple[list[list[int]], list[list[int]]]:
    """Of inputs and outputs."""
    part, whole = [step.n, 2], [p * step.n, 2]
    table = {
        "all_gather": ([part], [whole]),
        "reduce_scatter": ([whole], [part]),
        "all_to_all": ([whole], [whole]),
        "send": ([part], [part]),
        "recv": ([part], [part]),
        "barrier": ([], []),
    }
    return table.get(step.operation, ([part], [part]))


def written(found: Dumps, folder: Path, form: str = "pickle") -> list[Path]:
    """The files, as PyTorch names them; JSON has no frames, and 0 for a time that is not known."""
    paths = []
    for rank, dump in found.items():
        path = folder / f"nccl_trace_rank_{rank}"
        if form == "json":
            entries = [
                {k: v or 0 if k.endswith("_ns") else v for k, v in e.items() if k != "frames"}
                for e in dump["entries"]
            ]
            path.write_text(json.dumps(dump | {"entries": entries}))
        else:
            path.write_bytes(pickle.dumps(dump, protocol=2))
        paths.append(path)
    return paths
