"""Record what the library computes as one file, so that a change that should not alter it can be seen not to.

`make golden` writes tests/golden.json, `make golden-check` prints the entries that differ from it and exits with 1. The
recorder imports the `collectives` that Python finds, so it records another checkout by
``PYTHONPATH=OTHER/src python .ci/golden.py --output FILE``.
"""

import argparse
import hashlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import collectives

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden.json"
PACKAGE = Path(collectives.__file__).parent
REFERENCE = PACKAGE.parent.parent / "experiments" / "results" / "reference"

Entries = Iterator[tuple[str, Any]]

SMALL, LARGE = range(1, 17), 64
SIZES = (8, 64 << 10, 64 << 20)
SIMULATED_ON = (2, 5, 6, 8, 12, 16, 60, 64, 120)
# Named machines are simulated for every choice, measured ones go by formulas.
CHOSEN_ON, CHOSEN_FOR = (2, 6, 8, 16), [4**i for i in (1, 5, 9, 13)]
FORMED_ON, FORMED_FOR = (*SMALL, 32, LARGE), [4**i for i in range(1, 16)]
PLAYED_ON = (4, 7, 8)

# A machine with everything that the presets lack: a slow node, shared uplinks, and time to reduce a byte.
UNEVEN = {
    "name": "uneven",
    "ranks_per_node": 2,
    "ports_per_node": 1,
    "inside": {"latency": 1e-6, "rate": 250e9},
    "network": {"latency": 4e-6, "overhead": 1e-6, "rate": 25e9},
    "levels": [{"name": "rack", "nodes": 2, "latency": 1e-6, "rate": 20e9, "uplink": 30e9}],
    "slower": {0: 16.0},
    "gamma": 1e-11,
}

# Machines whose links are known one by one: without a switch, and with one.
LINKED = ("dgx1", "a100")

# Commands that print rows as JSON. `bench-simulator` runs for minutes and `cluster` needs namespaces: neither is here.
COMMANDS = (
    "list -p 4 --json",
    "show all_reduce two_tree -p 8 --json",
    "verify all_reduce ring -p 4 --json",
    "verify --all --max-ranks 2 --json",
    "simulate all_reduce two_tree -p 8 --json",
    "backends --json",
    "bench --backend p2p gloo --ranks 2 --bytes 64 --repetitions 3 --json",
    "bench --algorithm ring auto --machine textbook --ranks 2 --bytes 64 --repetitions 3 --json",
)
CALIBRATE = "calibrate --repetitions 3"


def digest(*parts: bytes) -> str:
    """The SHA-256 of all parts, one after the other."""
    made = hashlib.sha256()
    for part in parts:
        made.update(part)
    return made.hexdigest()


def canonical(value: Any) -> Any:
    """A value as JSON has it; floats in hexadecimal, so that not a bit is lost."""
    if isinstance(value, dict):
        return {str(key): canonical(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        return canonical(value.tolist())
    if isinstance(value, list | tuple):
        return [canonical(each) for each in value]
    return value.hex() if isinstance(value, float) else value


def compact(value: Any) -> bytes:
    """A value as JSON without spaces, its keys sorted."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":")).encode()


def serialised(schedule: Any) -> Iterator[bytes]:
    """A schedule as bytes: what it says of itself, then each step's length and columns, little-endian."""
    told = ("collective", "p", "k", "nsteps", "root", "one_port", "ranks_per_node")
    yield compact([getattr(schedule, name) for name in told])
    for step in schedule.steps():
        yield len(step.src).to_bytes(8, "little")
        yield from (getattr(step, name).astype("<i8").tobytes() for name in ("src", "dst", "chunk", "count"))
        yield step.add.astype("u1").tobytes()


def schedules(small: Iterable[int] = SMALL, large: int = LARGE) -> Entries:
    """Every step of every algorithm: all its variants on few ranks, the default options on many."""
    from collectives.algorithms import ALGORITHMS, build, variants

    for names in ALGORITHMS:
        for p in small:
            made = [digest(*serialised(each)) for each in variants(*names, p)]
            yield f"{' '.join(names)} p={p:02}", f"{len(made)} variants {digest(''.join(made).encode())}"
        yield f"{' '.join(names)} p={large} default", digest(*serialised(build(*names, large)))


def machines() -> list[Any]:
    """Every preset without links of its own, and the uneven machine."""
    from collectives.machine import Machine, machine, presets

    return [*(on for on in map(machine, presets()) if not on.links), Machine.model_validate(UNEVEN)]


def simulated(ranks: Iterable[int] = SIMULATED_ON) -> Entries:
    """Seconds of every algorithm on every machine, for each size; and a digest of all else that a simulation tells."""
    from collectives.algorithms import ALGORITHMS, executable
    from collectives.machine import machine

    for on in machines():
        for p in (p for p in ranks if p % on.ranks_per_node == 0):
            for names in ALGORITHMS:
                yield f"{' '.join(names)} {on.name} p={p:03}", simulation(names, p, on)
    for on in map(machine, LINKED):
        for names in [*executable(), *((of, f"packed_trees@{on.name}") for of in ("all_gather", "broadcast"))]:
            yield f"{' '.join(names)} {on.name}", simulation(names, on.ranks_per_node, on)


def simulation(names: tuple[str, str], p: int, on: Any) -> str:
    """One algorithm on one machine."""
    from collectives.algorithms import build
    from collectives.simulator.simulation import simulate

    schedule = build(*names, p, segments=3, ranks_per_node=on.ranks_per_node)
    done = [simulate(schedule, on, n, names[1]) for n in SIZES]
    rest = compact([[each.finish, each.messages, each.bytes, each.busiest] for each in done])
    return f"{' '.join(each.seconds.hex() for each in done)} {digest(rest)[:16]}"


def chosen(ranks: Iterable[int] | None = None) -> Entries:
    """What `auto` chooses, without a machine and with each; sizes for which it is the same are written as one run."""
    from collectives import autotune
    from collectives.algorithms import ALGORITHMS
    from collectives.machine import Machine

    measured = Machine.model_validate(UNEVEN | {"name": autotune.MEASURED, "ports_per_node": 2, "levels": []})
    for on in (None, *machines(), measured):
        on_ranks, sizes = (FORMED_ON, FORMED_FOR) if on is measured else (CHOSEN_ON, CHOSEN_FOR)
        for collective in dict.fromkeys(of for of, _ in ALGORITHMS):
            seconds: list[Any] = []
            for p in ranks or on_ranks:
                made = [(n, autotune.choose(collective, p, n, on=on)) for n in sizes]
                yield f"{collective} {on.name if on else 'no machine'} p={p:02}", runs(made)
                seconds += [each.seconds for _, each in made]
            yield f"{collective} {on.name if on else 'no machine'} seconds", digest(compact(seconds))


def runs(made: Sequence[tuple[int, Any]]) -> str:
    """Choices by size, as ``4:bruck/1 64K:ring/1``: each holds from its size on.

    The number after the slash is that of the segments.
    """
    from collectives.units import format_bytes

    groups = groupby(made, lambda item: f"{item[1].algorithm}/{item[1].segments}")
    return " ".join(f"{format_bytes(next(group)[0])}:{name}" for name, group in groups)


def played(ranks: Iterable[int] = PLAYED_ON) -> Entries:
    """What the page's player reads of every algorithm."""
    from collectives.algorithms import ALGORITHMS
    from collectives.figures.player import player_data, shown

    for collective, name in ALGORITHMS:
        for p in ranks:
            yield f"{collective} {name} p={p}", digest(compact(player_data(shown(collective, name, p), name)))


def output(command: Sequence[str]) -> str:
    """What a command prints; RuntimeError says why it failed."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, env=found, stdin=subprocess.DEVNULL, timeout=300)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def keys(text: str) -> str:
    """The keys of JSON rows in their order; where rows differ in their keys, each kind of row in its own brackets."""
    kinds = dict.fromkeys(", ".join(json.loads(line)) for line in text.splitlines())
    return " ".join(f"[{kind}]" for kind in kinds)


def rows(commands: Iterable[str] = COMMANDS, program: Sequence[str] = (sys.executable, "-m", "collectives")) -> Entries:
    """The keys of the rows that each command prints."""
    for command in commands:
        yield command, tried(lambda command=command: keys(output([*program, *command.split()])))


def calibrated() -> Entries:
    """The fields of the machine's file that `calibrate` prints."""
    import yaml

    def fields() -> str:
        made = yaml.safe_load(output([sys.executable, "-m", "collectives", *CALIBRATE.split()]))
        return f"{', '.join(made)}; network: {', '.join(made['network'])}"

    yield CALIBRATE, tried(fields)


def tried(make: Callable[[], Any]) -> Any:
    """What is made, or the error in its place: an entry that cannot be made is a difference, not an end."""
    try:
        return make()
    except Exception as error:
        return f"error: {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def public() -> Entries:
    """The names that `import collectives` promises, with their signatures as Python sees them."""
    for name in collectives.__all__:
        yield name, signature(getattr(collectives, name))


def signature(value: Any) -> str:
    """A callable's signature, or the type of another value; an exception has none and shows its bases."""
    if isinstance(value, type) and issubclass(value, Exception):
        return f"class({', '.join(base.__name__ for base in value.__bases__)})"
    return str(inspect.signature(value)) if callable(value) else type(value).__name__


def references(folder: Path = REFERENCE) -> Entries:
    """Every committed row and record, as `results.read` returns them; other rows as the JSON of each line."""
    from collectives.bench.results import read

    for path in sorted(folder.rglob("*.parquet")):
        table, record = read(path.with_suffix(""))
        name, types = path.relative_to(folder).as_posix(), ", ".join(f"{of}: {is_}" for of, is_ in table.dtypes.items())
        yield f"{name} rows", f"{len(table)} {digest(*map(compact, table.to_dict('records')))}"
        yield f"{name} types", types
        yield f"{name} record", digest(compact(record))
    for path in sorted(folder.rglob("*.jsonl")):
        found = [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]
        yield f"{path.relative_to(folder).as_posix()} rows", f"{len(found)} {digest(*map(compact, found))}"


SECTIONS: dict[str, Callable[[], Entries]] = {
    "calibrate": calibrated,
    "choice": chosen,
    "player": played,
    "public": public,
    "reference": references,
    "rows": rows,
    "schedule": schedules,
    "simulate": simulated,
}


def recorded(sections: dict[str, Callable[[], Entries]]) -> dict[str, Any]:
    """All entries by name, which begins with the section's."""
    found: dict[str, Any] = {}
    for section, make in sections.items():
        made = tried(lambda make=make: dict(make()))
        made = made if isinstance(made, dict) else {"whole section": made}
        found |= {f"{section}: {name}": value for name, value in made.items()}
        print(f"golden: {section}, {len(made)} entries", file=sys.stderr, flush=True)
    return found


def write(path: Path, found: dict[str, Any]) -> None:
    """Write the file whole or not at all: one entry a line, sorted."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(found, indent=0, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """One line for each entry that is new, gone or changed."""
    lines = []
    for name in sorted({*before, *now}):
        if name not in now:
            lines.append(f"- {name}: {before[name]}")
        elif name not in before:
            lines.append(f"+ {name}: {now[name]}")
        elif before[name] != now[name]:
            lines.append(f"! {name}: {before[name]} -> {now[name]}")
    return lines


def main() -> int:
    """Record, then write or compare; returns the exit code."""
    parser = argparse.ArgumentParser("golden.py", description="Record what the library computes, or compare with it.")
    parser.add_argument("--output", type=Path, default=GOLDEN, metavar="FILE", help="what to write (tests/golden.json)")
    parser.add_argument("--check", action="store_true", help="write nothing; print what differs from tests/golden.json")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="these sections only")
    arguments = parser.parse_args()
    now = recorded({name: SECTIONS[name] for name in arguments.only})
    if not arguments.check:
        write(arguments.output, now)
        return 0
    before = json.loads(GOLDEN.read_text(encoding="utf8"))
    lines = differences({name: value for name, value in before.items() if name.split(":")[0] in arguments.only}, now)
    print(*lines, sep="\n") if lines else print(f"{len(now)} entries, none differs")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
