"""The part of the verb ``verify`` that takes files: programs in MSCCL XML, schedules of TE-CCL in JSON."""

import argparse
from typing import Any

from collectives.cli import out_row
from collectives.units import duration, format_bytes, many
from collectives_interop.judge import judged

BYTES = 1 << 20  # without --bytes


def verify_files(arguments: argparse.Namespace) -> None:
    """Print a row for each of ``arguments.files``.

    Raises ValueError if one is unreadable, RuntimeError if one is wrong.
    """
    machine = None
    if arguments.machine is not None:
        from collectives.machine import machine as machine_of

        machine = machine_of(arguments.machine)
    elif arguments.bytes:
        raise ValueError("--bytes goes with --machine: got no machine, expected one")
    verdicts = []
    for row in judged(arguments.files, machine, arguments.bytes or BYTES):
        out_row(row, _line(row), arguments.json)
        verdicts.append(row["verdict"])
    counts = [
        f"{verdicts.count(verdict)} of {len(verdicts)} {verdict}"
        for verdict in ("wrong", "unreadable")
        if verdict in verdicts
    ]
    message = ", ".join(counts)
    if "unreadable" in verdicts:
        raise ValueError(message)
    if "wrong" in verdicts:
        raise RuntimeError(message)


def _line(row: dict[str, Any]) -> str:
    """Return a row as the terminal shows it."""
    if row["verdict"] != "right":
        return f"{row['verdict']}  {row['file']}: {row['why']}"
    described = _describe_flows(row) if "flows" in row else _describe_program(row)
    return f"ok  {row['file']}: {described}{_describe_time(row)}"


PROGRAM = (
    "{collective} on {ranks} GPUs, {place}: {instructions} steps, "
    "{messages} messages ({depth} in a row), slots needed: {slots}, "
    "{needless} of {dependencies} dependencies not needed; "
    "busiest GPU: {busiest_sent:.3g} n sent, {busiest_received:.3g} n received, "
    "at least {least:.3g} n; busiest link: {busiest_link:.3g} n"
)


def _describe_program(row: dict[str, Any]) -> str:
    """Describe a program that is right."""
    modes = ["in place" if mode else "out of place" for mode in row["in_place"]]
    needless = "an unknown number"
    if row["needless"] is not None:
        needless = str(len(row["needless"]))
    shown = row | {"place": " and ".join(modes), "needless": needless}
    return PROGRAM.format(**shown)


def _describe_flows(row: dict[str, Any]) -> str:
    """Describe a schedule of TE-CCL that is right."""
    switches = many(len(row["switches"]), "switch")
    if row["switches"]:
        numbers = ", ".join(str(number) for number in row["switches"])
        switches += f" ({numbers})"
    return (
        f"{row['collective']} on {row['ranks']} GPUs ({row['gpus']}) and {switches}: "
        f"{row['flows']:,} flows, the last in epoch {row['epochs'] - 1}; every chunk arrives"
    )


def _describe_time(row: dict[str, Any]) -> str:
    """Describe how long the program takes, if there is a machine."""
    if "machine" not in row:
        return ""
    time = row.get("not_simulated") or f"{duration(row['simulated_seconds'])} simulated"
    return f"; {row['machine']}, {format_bytes(row['bytes'])}: {time}"
