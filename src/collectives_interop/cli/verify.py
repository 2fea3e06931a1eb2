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
    if row["verdict"] != "right":
        return f"{row['verdict']}  {row['file']}: {row['why']}"
    described = _describe_flows(row) if "flows" in row else _describe_program(row)
    return f"ok  {row['file']}: {described}{_describe_time(row)}"


def _describe_program(row: dict[str, Any]) -> str:
    place = " and ".join("in place" if mode else "out of place" for mode in row["in_place"])
    needless = "an unknown number" if row["needless"] is None else len(row["needless"])
    return (
        f"{row['collective']} on {row['ranks']} GPUs, {place}: {row['instructions']} steps, "
        f"{row['messages']} messages ({row['depth']} in a row), slots needed: {row['slots']}, "
        f"{needless} of {row['dependencies']} dependencies not needed; "
        f"busiest GPU: {row['busiest_sent']:.3g} n sent, "
        f"{row['busiest_received']:.3g} n received, at least {row['least']:.3g} n; "
        f"busiest link: {row['busiest_link']:.3g} n"
    )


def _describe_flows(row: dict[str, Any]) -> str:
    switches = many(len(row["switches"]), "switch")
    if row["switches"]:
        numbers = ", ".join(str(number) for number in row["switches"])
        switches += f" ({numbers})"
    return (
        f"{row['collective']} on {row['ranks']} GPUs ({row['gpus']}) and {switches}: "
        f"{row['flows']:,} flows, the last in epoch {row['epochs'] - 1}; every chunk arrives"
    )


def _describe_time(row: dict[str, Any]) -> str:
    if "machine" not in row:
        return ""
    time = row.get("not_simulated") or f"{duration(row['simulated_seconds'])} simulated"
    return f"; {row['machine']}, {format_bytes(row['bytes'])}: {time}"
