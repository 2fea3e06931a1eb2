"""Findings in a log: what failed and who, the causes before the effects, settings that differ, and slow ways."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from collectives.units import many
from collectives_logs.finding import MAX_NAMED, Finding, finding, named, ranks
from collectives_logs.forms import CAUSE, CONSEQUENCE, RESULT, Form
from collectives_logs.log import (
    NO_DIRECT,
    SOCKETS,
    JobLog,
    LogMessage,
    Process,
    Raised,
    Setting,
    read,
)
from collectives_logs.sources import LogLine, lines_of
from collectives_logs.watchdog import timeouts

# Variables that all ranks of a job need alike; names of devices may differ from host to host.
ALIKE = re.compile(
    r"_(?:ALGO|PROTO|\w*NCHANNELS|NTHREADS|BUFFSIZE|NET|NET_PLUGIN|COLLNET_ENABLE|NVLS_ENABLE|CROSS_NIC)$"
)
# Exceptions that another process's end or a launcher brings about, not the program's own.
NOT_OWN = re.compile(
    r"^\S*(?:Dist\w*Error|ChildFailedError|Process\w*Exception|CalledProcessError|SignalException|KeyboardInterrupt"
    r"|SystemExit|Horovod\w*Error|Ray\w*Error|Actor\w*Error|BrokenPipe\w*|Connection\w*Error|EOFError|Timeout\w*|Rendezvous\w*)"
    r"|NCCL|[Tt]imed? ?out|[Cc]onnection (?:reset|closed|refused)|gloo/|Broken pipe"
)
# Findings that only show lines of a text that nothing else explains.
LAST_WORDS = ("not known", "traceback", "first error", "last line")
# What differs between lines that say the same: addresses, and the time in glog's head.
VARYING = re.compile(r"0x[0-9a-f]+|\[[EWFI][\d :.]{0,40}[\w.]{1,60}:\d{1,6}\] ?")
# How many texts of one form are shown, and how much of all but the first.
MAX_ALIKE, MAX_MORE = 4, 300


def findings_of(paths: Sequence[Path]) -> Iterator[Finding]:
    """Yield the findings in the log that these files are together. Raises OSError."""
    return findings(read(lines_of(paths)))


def findings(log: JobLog) -> Iterator[Finding]:
    """Yield what the log is, then what is wrong or worth a look, the causes before the effects.

    >>> from collectives_logs.sources import numbered
    >>> lines = ["n1:7:7 [0] NCCL INFO NCCL version 2.20.5", "n2:9:9 [0] NCCL INFO NCCL version 2.19.3"]
    >>> [one.kind for one in findings(read(numbered(lines, "job.log")))][:2]
    ['log', 'versions']
    """
    versions = ", ".join(log.settings.get("version", {}))
    says = f"; NCCL {versions}" if versions else ""
    yield Finding("log", f"{many(log.lines, 'line')}, {log.own:,} of them NCCL's{says}")
    found, waited = [*_messages(log, CAUSE)], [*timeouts(log.torch)]
    is_explained = any(one.follows for one in found)
    has_failed = (
        is_explained
        or bool(waited)
        or any(each.form and each.form.follows for each in log.messages)
    )
    if has_failed:  # or else a program may have caught them
        found += _exceptions(log, is_cause=not is_explained)
    found += [*waited, *_settings(log)]
    found += [*_unknown(log), *_messages(log, CONSEQUENCE), *_messages(log, RESULT)]
    found += [*_slow_ways(log)]
    yield from found
    if not any(one.follows for one in found):
        yield from _last_words(log)


def _messages(log: JobLog, weight: str) -> Iterator[Finding]:
    """Yield what lines of known forms say, of one weight.

    What only names a result says nothing beside causes.
    """
    forms: dict[Form, list[LogMessage]] = {}
    for message in log.messages:
        if message.form and message.form.next and message.form.weight == weight:
            forms.setdefault(message.form, []).append(message)
    is_explained = any(
        each.form and each.form.weight != RESULT and each.form.follows for each in log.messages
    )
    if weight == RESULT and is_explained:
        return
    if weight == RESULT:  # that a rank ended says more than that some process did
        forms = dict(sorted(forms.items(), key=lambda item: not item[0].says))
    for form, those in [*forms.items()][:MAX_NAMED]:
        yield _shown(form.kind, those, form)


def _unknown(log: JobLog) -> Iterator[Finding]:
    """Yield warnings and errors of no known form, as they are: they may be the cause, or nothing."""
    alike: dict[str, list[LogMessage]] = {}
    for message in log.messages:
        if message.form is None or not message.form.next:
            alike.setdefault(re.sub(r"0x[0-9a-f]+|\d+", "0", message.text), []).append(message)
    for those in [*alike.values()][:MAX_NAMED]:
        yield _shown("warning" if those[0].form is None else "error", those)


def _shown(kind: str, those: Sequence[LogMessage], form: Form | None = None) -> Finding:
    """Return a finding that shows these lines, each text once, whom they name, and where some of them are."""
    distinct: dict[str, LogMessage] = {}
    for each in those:
        distinct.setdefault(VARYING.sub("", each.text), each)
    texts = [
        f"{each.process.host}: {each.text}" if each.process.host else each.text
        for each in distinct.values()
    ]
    text = "; ".join([texts[0], *(more[:MAX_MORE] for more in texts[1:MAX_ALIKE])])
    if form and (who := _who(those, form)):
        text = f"{who}: {text}"
    found = f"{text} ({many(len(those), 'line')}{_on(each.process for each in those)})"
    places = tuple(dict.fromkeys(each.at for each in those))[:3]
    return Finding(kind, found, form.follows if form else "", form.next if form else "", places)


def _who(those: Sequence[LogMessage], form: Form) -> str:
    """Return whom these lines name, or "": all together, but of tensors that wait each list of ranks."""
    lists = [*dict.fromkeys(some for each in those for some in each.ranks)]
    if form.kind != "behind" and lists:
        lists = [frozenset().union(*lists)]
    return (
        "; ".join(form.says.format(ranks=ranks(some)) for some in lists[:MAX_ALIKE])
        if form.says
        else ""
    )


def _exceptions(log: JobLog, *, is_cause: bool) -> Iterator[Finding]:
    """Yield the exceptions of the program itself.

    If the job failed and no line says why, they are the reason.
    """
    distinct: dict[str, list[Raised]] = {}
    for each in log.raised:
        if not NOT_OWN.search(each.text):
            distinct.setdefault(each.text, []).append(each)
    explained = {each.at for each in log.messages}
    for text, those in [*distinct.items()][:MAX_ALIKE]:
        if explained.isdisjoint(each.at for each in those):
            who = next((f"{each.process.host}: " for each in those if each.process.host), "")
            frame = f", raised at {those[0].frame}" if those[0].frame else ""
            shown = f"{who}{text}{frame} ({many(len(those), 'traceback')}{_on(each.process for each in those)})"
            one = finding("log.exception", *(each.at for each in those[:3]), found=shown)
            yield one if is_cause else one._replace(follows="", next="")


def _settings(log: JobLog) -> Iterator[Finding]:
    """Yield versions, networks and variables in which processes differ."""
    for name, values in sorted(log.settings.items()):
        key = (
            name
            if name in ("version", "network")
            else "environment"
            if ALIKE.search(name)
            else "other environment"
        )
        if len(values) > 1:
            yield _differ(log, f"nccl.{key}", values, name)


def _differ(log: JobLog, key: str, values: dict[str, Setting], name: str) -> Finding:
    """Return that processes have different values.

    Something follows if two are of one communicator.
    """
    found = "; ".join(
        [f"{value}{_on(setting.processes)}" for value, setting in values.items()][:MAX_NAMED]
    )
    one = finding(key, *(setting.at for setting in values.values()), values=found, name=name)
    members = log.communicators.values()
    is_one_job = any(
        sum(not those.isdisjoint(each.processes) for each in values.values()) > 1
        for those in members
    )
    return one if is_one_job else one._replace(follows="", next="")


def _slow_ways(log: JobLog) -> Iterator[Finding]:
    """Yield connections that go over sockets, without GPU-direct, or through a host's memory."""
    for way, (count, first, at) in log.ways.items():
        found = f"{many(count, 'line')} of connections by {way}, such as {first}"
        if way == NO_DIRECT and "GeForce" in log.settings:
            yield Finding(
                "connection", f"{found}; GeForce and TITAN GPUs do not support it", at=(at,)
            )
        else:
            yield finding(f"nccl.{way}", at, found=found)
    for network, setting in log.settings.get("network", {}).items():
        hosts = {process.host for process in setting.processes}
        if network == "Socket" and SOCKETS not in log.ways and len(hosts) > 1:
            found = f"the network between hosts is sockets (`Using network Socket`){_on(setting.processes)}"
            yield finding(f"nccl.{SOCKETS}", setting.at, found=found)


def _last_words(log: JobLog) -> Iterator[Finding]:
    """Yield what a reader of an unknown text would look for: the first traceback, the first errors, the last lines."""
    at = next((line.at for lines in log.ends.values() for line in lines), None)
    if at is None:
        return
    yield finding("log.not known")._replace(at=(at,))
    for at, process, frame, text in log.raised[:1]:
        who = f"{process.host}: " if process.host else ""
        yield Finding(
            "traceback", f"{who}{text}{f', raised at {frame}' if frame else ''}", at=(at,)
        )
    shown = {each.at for each in log.raised[:1]}
    spoken = [line for line in log.errors if line.at not in shown]
    yield from (_line("first error", line) for line in spoken)
    for lines in [*log.ends.values()][:MAX_ALIKE]:
        yield from (_line("last line", line) for line in lines)


def _line(kind: str, line: LogLine) -> Finding:
    """Return a finding that shows a line as it is."""
    return Finding(kind, line.text.strip()[:MAX_MORE], at=(line.at,))


def _on(processes: Iterable[Process]) -> str:
    """Return the hosts, as far as lines name them."""
    hosts = sorted({process.host for process in processes} - {""})
    return f" on {named(hosts)}" if hosts else ""
