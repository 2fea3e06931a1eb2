"""What a log of NCCL says about a job: findings, with what follows, what to try next, and the lines they rest on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from collectives.logs.finding import MOST_NAMED, Finding, Place, lines_of, named
from collectives.logs.nccl import topology
from collectives.logs.nccl.causes import Cause, cause_of
from collectives.logs.nccl.lines import read
from collectives.logs.nccl.log import Communicator, Log, Process, Setting
from collectives.logs.nccl.torch_lines import timeouts
from collectives.units import format_bytes, many


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """The findings in the log that these files are together. Raises OSError."""
    return findings(read(lines_of(paths)))


def findings(log: Log) -> Iterator[Finding]:
    """All findings: what the job is, then what is wrong or worth a look, the causes before the effects.

    >>> from collectives.logs.finding import numbered
    >>> log = ["n1:7:7 [0] NCCL INFO NCCL version 2.20.5", "n2:9:9 [0] NCCL INFO NCCL version 2.19.3"]
    >>> [one.kind for one in findings(read(numbered(log, "job.log")))]
    ['log', 'versions']
    """
    yield Finding("log", f"{many(log.lines, 'line')}, {log.own:,} of them NCCL's")
    shown = [*log.communicators.values()][:MOST_NAMED]
    for of in shown:
        yield _job(of, log)
    if more := len(log.communicators) - len(shown):
        yield Finding("communicator", f"{many(more, 'more communicator')}; what is wrong with them follows, too")
    yield from _versions(log)
    yield from _environment(log)
    yield from _warnings(log)
    for of in log.communicators.values():
        if not of.is_several:
            yield from (one for one in topology.findings(of, log) if one.kind != "proved" or of in shown)
    yield from _networks(log)
    yield from _choices(log)
    yield from _calls(log)
    yield from timeouts(log.torch, max([of.size for of in log.communicators.values()], default=0))


def _job(of: Communicator, log: Log) -> Finding:
    hosts = len({process.host for process in of.processes.values()})
    version = f", NCCL {', '.join(log.versions)}" if log.versions else ""
    name = "several of " if of.is_several else f"{of.name} of " if of.is_named else ""
    here = "all" if len(of.processes) == of.size else f"{len(of.processes)}"
    said = f"{name}{many(of.size, 'rank')}, {here} in the log, on {many(hosts, 'host')}"
    lines = [line for _, line in of.rings.values()][:1] or [*of.complete.values()][:1]
    return Finding("communicator", f"{said}; {many(len(of.rings), 'channel')}{version}", at=tuple(lines))


def _versions(log: Log) -> Iterator[Finding]:
    follows = "ranks with different versions of NCCL may fail or hang when they connect"
    yield from _differ("versions", "NCCL versions differ", log.versions, follows, "install one version on all hosts")


def _environment(log: Log) -> Iterator[Finding]:
    for name, values in sorted(log.environment.items()):
        follows = f"{name} differs between ranks, and they may choose different algorithms or links"
        yield from _differ("environment", f"{name} differs", values, follows, f"set {name} on every rank alike")
    asked = log.environment.get("NCCL_ALGO", {})
    ran = Counter(algorithm for _, _, algorithm, _ in log.choices)
    for value, setting in asked.items():
        allowed = {name.lower() for name in value.replace("^", "").replace(":", ",").split(",")}
        other = sorted(name for name in ran if name.lower() not in allowed)
        if other and not value.startswith("^") and ":" not in value:
            line = next(line for (_, _, algorithm, _), (_, line) in log.choices.items() if algorithm in other)
            yield Finding(
                "NCCL_ALGO",
                f"NCCL_ALGO is {value}, and calls ran {', '.join(other)}",
                "NCCL does not have that algorithm for these calls or this network, and took another one",
                "compare with the support matrix that NCCL prints under NCCL_DEBUG_SUBSYS=TUNING",
                (setting.at, line),
            )


def _warnings(log: Log) -> Iterator[Finding]:
    """Those that say why the job fails first; what only names a result says nothing beside them."""
    seen: dict[tuple[Cause | None, str], list[tuple[Place, Process, str]]] = {}
    for line, process, text in log.warnings:
        cause = cause_of(text)
        seen.setdefault((cause, "" if cause else text), []).append((line, process, text))
    is_told = any(cause and not cause.is_result for cause, _ in seen)
    kept = [each for each in seen.items() if not (is_told and each[0][0] and each[0][0].is_result)]
    for (cause, _), places in sorted(kept, key=lambda each: each[0][0] is None)[:MOST_NAMED]:
        line, process, text = places[0]
        found = f"{process.host or 'NCCL'} warns: {text[:300]}"
        on = _on(process for _, process, _ in places)
        if cause:
            yield Finding(cause.kind, f"{found} ({many(len(places), 'line')}{on})", cause.follows, cause.next, (line,))
        else:
            yield Finding("warning", found, f"{many(len(places), 'such warning')}{on and f',{on}'}", "", (line,))


def _networks(log: Log) -> Iterator[Finding]:
    follows, advice = "two ranks that use different networks cannot connect", "install one network plugin on all hosts"
    yield from _differ("networks", "ranks use different networks", log.networks, follows, advice)


def _choices(log: Log) -> Iterator[Finding]:
    """The algorithm and protocol of each size, as a range of sizes."""
    sizes: dict[tuple[str, str, str], list[int]] = {}
    for collective, nbytes, algorithm, protocol in log.choices:
        sizes.setdefault((collective, algorithm, protocol), []).append(nbytes)
    for (collective, algorithm, protocol), found in sorted(sizes.items()):
        span = " to ".join(dict.fromkeys(format_bytes(size) for size in (min(found), max(found))))
        line = min(
            line for (of, _, a, b), (_, line) in log.choices.items() if (of, a, b) == (collective, algorithm, protocol)
        )
        yield Finding("choice", f"{collective or 'calls'} of {span}: {algorithm}, {protocol}", at=(line,))


def _calls(log: Log) -> Iterator[Finding]:
    """Ranks whose last call is another one than the others'."""
    groups: dict[str, dict[Process, tuple[int, str, Place]]] = {}
    for (name, process), last in log.calls.items():
        groups.setdefault(name, {})[process] = last
    for name, calls in groups.items():
        most = max(number for number, _, _ in calls.values())
        behind = {process: call for process, call in calls.items() if call[0] < most}
        ahead = {call[1]: call[2] for call in calls.values() if call[0] == most}
        if len(ahead) > 1:
            yield Finding(
                "calls",
                f"call {most} of {name} differs between ranks: {'; '.join(ahead)}",
                "a collective whose arguments differ hangs or gives wrong results",
                "find where the ranks' programs part",
                tuple(ahead.values())[:MOST_NAMED],
            )
        if behind:
            process, (number, what, line) = min(behind.items(), key=lambda item: item[1][0])
            yield Finding(
                "behind",
                f"{many(len(behind), 'process')} of {len(calls)} in {name} {'has' if len(behind) == 1 else 'have'} not "
                f"reached call {most}: {process.host}:{process.pid} made call {number} last, {what}",
                "the others wait there, if the job hangs; if it does not, the log ends too early",
                f"see what process {process.pid} on {process.host} does: py-spy dump --pid {process.pid}",
                (line,),
            )


def _differ(kind: str, what: str, values: dict[str, Setting], follows: str, advice: str) -> Iterator[Finding]:
    """A finding if processes have different values."""
    if len(values) > 1:
        told = [f"{value}{_on(setting.processes)}" for value, setting in values.items()][:MOST_NAMED]
        at = tuple(setting.at for setting in values.values())[:MOST_NAMED]
        yield Finding(kind, f"{what}: {'; '.join(told)}", follows, advice, at)


def _on(processes: Iterable[Process]) -> str:
    """The hosts, as far as lines name them."""
    hosts = sorted({process.host for process in processes} - {""})
    return f" on {named(hosts)}" if hosts else ""
