"""What a log of NCCL says about a job: findings, with what follows, what to try next, and the lines they rest on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from collectives.logs.finding import MOST_NAMED, Finding, Place, lines_of, named
from collectives.logs.nccl import topology
from collectives.logs.nccl.forms import CAUSE, CONSEQUENCE, IN_NCCL, RESULT, Form, form_of
from collectives.logs.nccl.lines import read
from collectives.logs.nccl.log import Communicator, Log, Process, Said, Setting
from collectives.logs.nccl.torch_lines import timeouts
from collectives.units import format_bytes, many

# Variables that all ranks of a job need alike; names of devices may differ from host to host.
ALIKE = re.compile(
    r"_(?:ALGO|PROTO|\w*NCHANNELS|NTHREADS|BUFFSIZE|NET|NET_PLUGIN|COLLNET_ENABLE|NVLS_ENABLE|CROSS_NIC)$"
)

WORDS = {"versions": "NCCL versions differ", "networks": "ranks use different networks"}


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
    yield from _said(log, CAUSE)
    several = [of for of in log.communicators.values() if of.size > 1]
    yield from timeouts(log.torch, several[0].size if len(several) == 1 and not several[0].is_several else 0)
    yield from _settings(log)
    yield from _unknown(log)
    yield from _said(log, CONSEQUENCE)
    yield from _said(log, RESULT)
    for of in log.communicators.values():
        if not of.is_several:
            yield from (one for one in topology.findings(of, log) if one.kind != "proved" or of in shown)
    yield from _nics(log)
    yield from _choices(log)
    yield from _calls(log)


def _job(of: Communicator, log: Log) -> Finding:
    hosts = len({process.host for process in of.processes.values()})
    version = f", NCCL {', '.join(log.versions)}" if log.versions else ""
    name = "several of " if of.is_several else f"{of.name} of " if of.is_named else ""
    here = "all" if len(of.processes) == of.size else f"{len(of.processes)}"
    said = f"{name}{many(of.size, 'rank')}, {here} in the log, on {many(hosts, 'host')}"
    lines = [line for _, line in of.rings.values()][:1] or [*of.complete.values()][:1]
    return Finding("communicator", f"{said}; {many(len(of.rings), 'channel')}{version}", at=tuple(lines))


def _settings(log: Log) -> Iterator[Finding]:
    """Versions, networks and variables in which processes differ, and an algorithm that was asked for in vain."""
    follows = "ranks with different versions of NCCL may fail or hang when they connect"
    yield from _differ(log, "versions", log.versions, follows, "install one version on all hosts")
    follows = "two ranks that use different networks cannot connect"
    yield from _differ(log, "networks", log.networks, follows, "install one network plugin on all hosts")
    for name, values in sorted(log.environment.items()):
        follows = "the ranks may choose different algorithms or links" if ALIKE.search(name) else ""
        yield from _differ(log, "environment", values, follows, f"set {name} on every rank alike", name)
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


def _said(log: Log, weight: str) -> Iterator[Finding]:
    """Yield what lines of known forms say, of one weight; what only names a result says nothing beside causes."""
    forms: dict[Form, list[Said]] = {}
    for said in log.said:
        if said.form and said.form.next and said.form.weight == weight:
            forms.setdefault(said.form, []).append(said)
    if weight == RESULT and any(said.form and said.form.weight != RESULT and said.form.next for said in log.said):
        return
    for form, those in [*forms.items()][:MOST_NAMED]:
        yield _shown(form.kind, those, form.follows, form.next)


def _unknown(log: Log) -> Iterator[Finding]:
    """Warnings and errors of no known form, as they are: they may be the cause, or nothing."""
    alike: dict[str, list[Said]] = {}
    for said in log.said:
        if said.form is None or not said.form.next:
            alike.setdefault(re.sub(r"0x[0-9a-f]+|\d+", "0", said.text), []).append(said)
    for those in [*alike.values()][:MOST_NAMED]:
        yield _shown("warning" if those[0].form is None else "error", those)


def _shown(kind: str, those: Sequence[Said], follows: str = "", advice: str = "") -> Finding:
    """A finding that shows the first of these lines, and where some of them are."""
    first = those[0]
    said = f"{first.process.host}: {first.text}" if first.process.host else first.text
    found = f"{said} ({many(len(those), 'line')}{_on(each.process for each in those)})"
    return Finding(kind, found, follows, advice, tuple(dict.fromkeys(each.at for each in those))[:3])


def _nics(log: Log) -> Iterator[Finding]:
    """Yield what NCCL sends over; Docker's bridge is a fault where the job has several nodes."""
    for value, (processes, at) in [*log.nics.items()][:MOST_NAMED]:
        yield Finding("nics", f"{value}{_on(processes)}", at=(at,))
    for value, (processes, at) in log.bridges.items():
        if any(of.nodes > 1 for of in log.communicators.values()):
            found = f"{value} uses Docker's bridge (docker0, 172.17.x.x){_on(processes)}, and the job has several nodes"
            of_bridge = form_of("Connect to docker0", IN_NCCL) or Form(re.compile(""))
            yield Finding("network", found, of_bridge.follows, of_bridge.next, (at,))


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
                f"{len(behind)} of {len(calls)} processes in {name} did not reach call {most} in this log: "
                f"{process.host}:{process.pid} made call {number} last, {what}",
                ""
                if log.is_told
                else "the others wait there, if the job hangs; if it does not, the log ends too early",
                f"see what process {process.pid} on {process.host} does: py-spy dump --pid {process.pid}",
                (line,),
            )


def _differ(
    log: Log, kind: str, values: dict[str, Setting], follows: str, advice: str, name: str = ""
) -> Iterator[Finding]:
    """A finding if processes have different values; something follows if two of them are of one communicator."""
    if len(values) > 1:
        told = [f"{value}{_on(setting.processes)}" for value, setting in values.items()][:MOST_NAMED]
        at = tuple(setting.at for setting in values.values())[:MOST_NAMED]
        members = ({*of.processes.values()} for of in log.communicators.values() if not of.is_several)
        if not any(sum(not those.isdisjoint(each.processes) for each in values.values()) > 1 for those in members):
            follows = ""
        what = f"{name} differs" if name else WORDS[kind]
        yield Finding(kind, f"{what}: {'; '.join(told)}", follows, advice if follows else "", at)


def _on(processes: Iterable[Process]) -> str:
    """The hosts, as far as lines name them."""
    hosts = sorted({process.host for process in processes} - {""})
    return f" on {named(hosts)}" if hosts else ""
