"""Record what the library computes as one file, so that a change that should not alter it can be seen not to.

`make golden` writes tests/golden.json. `make golden-check` prints the entries that differ from it
and exits with 1; ``python .ci/golden.py --check schedule choice`` looks at these sections alone.
"""

import argparse
import hashlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

import collectives
from collectives import autotune
from collectives.algorithms import ALGORITHMS, build, executable, variants
from collectives.bench.results import read
from collectives.core.schedule import serialised
from collectives.figures import player
from collectives.machine import Machine, machine
from collectives.simulator import simulation
from collectives.units import format_bytes

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden.json"
REFERENCE = ROOT / "experiments" / "results" / "reference"

Entries = Iterator[tuple[str, Any]]

SMALL, LARGE = range(1, 17), 64
SIZES = (8, 64 << 10, 64 << 20)
SIMULATED_ON = (2, 5, 6, 8, 12, 16, 60, 64, 120)
# Named machines are simulated for every choice, measured ones go by formulas.
CHOSEN_ON, CHOSEN_FOR = (2, 6, 8, 16), [4**i for i in (1, 5, 9, 13)]
FORMED_ON, FORMED_FOR = (*SMALL, 32, LARGE), [4**i for i in range(1, 16)]
PLAYED_ON = (4, 7, 8)

# A machine with everything that the presets lack: a slow node, shared uplinks, and time to reduce a
# byte.
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

# Presets that differ in kind. Those fitted by one recipe have h100's fields and other numbers.
PRESETS = (
    "dgx-1v",
    "dgx-a100",
    "dgx-h100",
    "ethernet",
    "h100",
    "marenostrum5",
    "summit",
    "textbook",
)

# Commands that print rows as JSON. `cluster` needs namespaces, so it is not here.
COMMANDS = (
    "list -p 4 --json",
    "show all_reduce two_tree -p 8 --json",
    "verify all_reduce ring -p 4 --json",
    "verify --all --max-ranks 2 --json",
    "simulate all_reduce two_tree -p 8 --json",
    "backends --json",
    "bench all_reduce --backend p2p gloo -p 2 --bytes 64 --repetitions 3 --json",
    "bench all_reduce ring auto --machine textbook -p 2 --bytes 64 --repetitions 3 --json",
)
CALIBRATE = "calibrate --repetitions 3"


def digest(*parts: bytes) -> str:
    """Return the SHA-256 of all parts, one after the other."""
    return hashlib.sha256(b"".join(parts)).hexdigest()


def canonical(value: Any) -> Any:
    """Return a value as JSON has it; floats in hexadecimal, so that not a bit is lost."""
    if isinstance(value, dict):
        return {str(key): canonical(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        return canonical(value.tolist())
    if isinstance(value, list | tuple):
        return [canonical(each) for each in value]
    return value.hex() if isinstance(value, float) else value


def compact(value: Any) -> bytes:
    """Return a value as JSON without spaces, its keys sorted."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":")).encode()


def schedules(small: Iterable[int] = SMALL, large: int = LARGE) -> Entries:
    """Every step of every algorithm: all its variants on few ranks, the default options on many."""
    for names in ALGORITHMS:
        for p in small:
            made = [digest(*serialised(each)) for each in variants(*names, p)]
            yield (
                f"{' '.join(names)} p={p:02}",
                f"{len(made)} variants {digest(''.join(made).encode())}",
            )
        yield f"{' '.join(names)} p={large} default", digest(*serialised(build(*names, large)))


def machines() -> list[Machine]:
    """Return the presets without links of their own that differ in kind, and the uneven machine."""
    return [*map(machine, PRESETS), Machine.model_validate(UNEVEN)]


def simulated(ranks: Iterable[int] = SIMULATED_ON) -> Entries:
    """Seconds of every algorithm on every machine, for each size.

    And a digest of all else that a simulation tells.
    """
    for on in machines():
        for p in (p for p in ranks if p % on.ranks_per_node == 0):
            for names in ALGORITHMS:
                yield f"{' '.join(names)} {on.name} p={p:03}", simulated_once(names, p, on)
    for on in map(machine, LINKED):
        for names in [
            *executable(),
            *((of, f"packed_trees@{on.name}") for of in ("all_gather", "broadcast")),
        ]:
            yield f"{' '.join(names)} {on.name}", simulated_once(names, on.ranks_per_node, on)


def simulated_once(names: tuple[str, str], p: int, on: Machine) -> str:
    """Return the entry of one algorithm on one machine."""
    schedule = build(*names, p, segments=3, ranks_per_node=on.ranks_per_node)
    done = [simulation.simulate(schedule, on, n, names[1]) for n in SIZES]
    rest = compact([[each.finish, each.messages, each.bytes, each.busiest] for each in done])
    return f"{' '.join(each.seconds.hex() for each in done)} {digest(rest)[:16]}"


def chosen(ranks: Iterable[int] | None = None) -> Entries:
    """What `auto` chooses, without a machine and with each.

    Sizes for which it is the same are written as one run.
    """
    measured = Machine.model_validate(
        UNEVEN | {"name": autotune.MEASURED, "ports_per_node": 2, "levels": []}
    )
    for on in (None, *machines(), measured):
        on_ranks, sizes = (FORMED_ON, FORMED_FOR) if on is measured else (CHOSEN_ON, CHOSEN_FOR)
        for collective in dict.fromkeys(of for of, _ in ALGORITHMS):
            seconds: list[Any] = []
            for p in ranks or on_ranks:
                made = [(n, autotune.choose(collective, p, n, on=on)) for n in sizes]
                yield f"{collective} {on.name if on else 'no machine'} p={p:02}", runs(made)
                seconds += [each.seconds for _, each in made]
            yield (
                f"{collective} {on.name if on else 'no machine'} seconds",
                digest(compact(seconds)),
            )


def runs(made: Sequence[tuple[int, Any]]) -> str:
    """Return choices by size, as ``4:bruck/1 64K:ring/1``: algorithm/segments, each holds from its size on."""
    groups = groupby(made, lambda item: f"{item[1].algorithm}/{item[1].segments}")
    return " ".join(f"{format_bytes(next(group)[0])}:{name}" for name, group in groups)


def played(ranks: Iterable[int] = PLAYED_ON) -> Entries:
    """What the page's player reads of every algorithm."""
    for collective, name in ALGORITHMS:
        for p in ranks:
            data = player.player_data(player.shown(collective, name, p), name)
            yield f"{collective} {name} p={p}", digest(compact(data))


def output(command: str, program: Sequence[str] = (sys.executable, "-m", "collectives")) -> str:
    """Return what a command prints."""
    return subprocess.run(
        [*program, *command.split()],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=300,
        check=True,
    ).stdout


def rows(commands: Iterable[str] = COMMANDS) -> Entries:
    """The keys of the rows that each command prints, in their order.

    Each kind of row in its own brackets.
    """
    for command in commands:
        kinds = dict.fromkeys(", ".join(json.loads(line)) for line in output(command).splitlines())
        yield command, " ".join(f"[{kind}]" for kind in kinds)


def calibrated() -> Entries:
    """The fields of the machine's file that `calibrate` prints.

    It has no overhead where a busy machine hides it.
    """
    made = yaml.safe_load(output(CALIBRATE))
    network = [name for name in made["network"] if name != "overhead"]
    yield CALIBRATE, f"{', '.join(made)}; network: {', '.join(network)}"


def public() -> Entries:
    """The names that `import collectives` promises, with their signatures as Python sees them."""
    for name in collectives.__all__:
        yield name, signature(getattr(collectives, name))


def signature(value: Any) -> str:
    """Return a callable's signature, or the type of another value.

    An exception has none and shows its bases. Addresses of functions in it differ from run to run.
    """
    if isinstance(value, type) and issubclass(value, Exception):
        return f"class({', '.join(base.__name__ for base in value.__bases__)})"
    if not callable(value):
        return type(value).__name__
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(value)))


def references(folder: Path = REFERENCE) -> Entries:
    """Every committed row and record, as `results.read` returns them.

    Other rows as the JSON of each line.
    """
    for path in sorted(folder.rglob("*.parquet")):
        table, record = read(path.with_suffix(""))
        name, types = (
            path.relative_to(folder).as_posix(),
            ", ".join(f"{of}: {is_}" for of, is_ in table.dtypes.items()),
        )
        yield f"{name} rows", f"{len(table)} {digest(*map(compact, table.to_dict('records')))}"
        yield f"{name} types", types
        yield f"{name} record", digest(compact(record))
    for path in sorted(folder.rglob("*.jsonl")):
        found = [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]
        yield (
            f"{path.relative_to(folder).as_posix()} rows",
            f"{len(found)} {digest(*map(compact, found))}",
        )


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


def recorded(sections: Iterable[str]) -> dict[str, Any]:
    """Return all entries of these sections by name, which begins with the section's."""
    return {
        f"{section}: {name}": value for section in sections for name, value in SECTIONS[section]()
    }


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return one line for each entry that is new, gone or changed."""
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return [
        f"{name}: got {now.get(name, 'none')}, expected {before.get(name, 'none')}"
        for name in names
    ]


def main() -> int:
    """Record, then write or compare; return the exit code."""
    parser = argparse.ArgumentParser(
        "golden.py", description="Record what the library computes, or compare with it."
    )
    parser.add_argument(
        "--check",
        nargs="*",
        choices=SECTIONS,
        help="write nothing; print what differs (all sections)",
    )
    check: list[str] | None = parser.parse_args().check
    now = recorded(check or SECTIONS)
    if check is None:
        text = json.dumps(now, indent=0, sort_keys=True, ensure_ascii=False)
        GOLDEN.write_text(f"{text}\n", encoding="utf8")
        return 0
    before = json.loads(GOLDEN.read_text(encoding="utf8"))
    before = {
        name: value for name, value in before.items() if not check or name.split(":")[0] in check
    }
    lines = differences(before, now)
    print(*lines or [f"{len(now)} entries, none differs"], sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
