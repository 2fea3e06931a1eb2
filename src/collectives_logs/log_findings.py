"""Findings in a log: what failed and who, the causes before the effects, settings that differ, and slow ways."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
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
    found = list(_messages(log, CAUSE))
    timed_out = list(timeouts(log.torch))
    is_explained = any(one.follows for one in found)
    is_failure = any(message.form and message.form.follows for message in log.messages)
    if is_explained or timed_out or is_failure:  # or else a program may have caught exceptions
        found.extend(_exceptions(log, is_cause=not is_explained))
    found.extend(timed_out)
    found.extend(_settings(log))
    found.extend(_unknown(log))
    found.extend(_messages(log, CONSEQUENCE))
    found.extend(_messages(log, RESULT))
    found.extend(_slow_ways(log))
    yield from found
    if not any(one.follows for one in found):
        yield from _last_words(log)


def _messages(log: JobLog, weight: str) -> Iterator[Finding]:
    """Yield what lines of known forms say, of one weight.

    What only names a result says nothing beside causes.
    """
    forms: dict[Form, list[LogMessage]] = {}
    is_explained = False
    for message in log.messages:
        form = message.form
        if form is None:
            continue
        if form.next and form.weight == weight:
            forms.setdefault(form, []).append(message)
        if form.follows and form.weight != RESULT:
            is_explained = True
    if weight == RESULT:
        if is_explained:
            return
        # That a rank ended says more than that some process did.
        forms = dict(sorted(forms.items(), key=lambda item: not item[0].says))
    for form, messages in islice(forms.items(), MAX_NAMED):
        yield _shown(form.kind, messages, form)


def _unknown(log: JobLog) -> Iterator[Finding]:
    """Yield warnings and errors of no known form, as they are: they may be the cause, or nothing."""
    alike: dict[str, list[LogMessage]] = {}
    for message in log.messages:
        if message.form is None or not message.form.next:
            without_numbers = re.sub(r"0x[0-9a-f]+|\d+", "0", message.text)
            alike.setdefault(without_numbers, []).append(message)
    for messages in islice(alike.values(), MAX_NAMED):
        yield _shown("warning" if messages[0].form is None else "error", messages)


def _shown(kind: str, messages: Sequence[LogMessage], form: Form | None = None) -> Finding:
    """Return a finding that shows these lines, each text once, whom they name, and where some of them are."""
    distinct: dict[str, LogMessage] = {}
    for message in messages:
        distinct.setdefault(VARYING.sub("", message.text), message)
    texts: list[str] = []
    for message in islice(distinct.values(), MAX_ALIKE):
        host = f"{message.process.host}: " if message.process.host else ""
        text = host + message.text
        texts.append(text[:MAX_MORE] if texts else text)
    found = "; ".join(texts)
    who = _who(messages, form) if form else ""
    if who:
        found = f"{who}: {found}"
    hosts = _on(message.process for message in messages)
    found += f" ({many(len(messages), 'line')}{hosts})"
    places = dict.fromkeys(message.at for message in messages)
    at = tuple(islice(places, 3))
    if form is None:
        return Finding(kind, found, at=at)
    return Finding(kind, found, form.follows, form.next, at)


def _who(messages: Sequence[LogMessage], form: Form) -> str:
    """Return whom these lines name, or "": all together, but of tensors that wait each list of ranks."""
    if not form.says:
        return ""
    lists: dict[frozenset[int], None] = {}  # each once, in their order
    for message in messages:
        lists |= dict.fromkeys(message.ranks)
    if form.kind != "behind" and lists:
        return form.says.format(ranks=ranks(chain.from_iterable(lists)))
    return "; ".join(form.says.format(ranks=ranks(some)) for some in islice(lists, MAX_ALIKE))


def _exceptions(log: JobLog, *, is_cause: bool) -> Iterator[Finding]:
    """Yield the exceptions of the program itself.

    If the job failed and no line says why, they are the reason.
    """
    distinct: dict[str, list[Raised]] = {}
    for raised in log.raised:
        if not NOT_OWN.search(raised.text):
            distinct.setdefault(raised.text, []).append(raised)
    explained = {message.at for message in log.messages}
    for text, alike in islice(distinct.items(), MAX_ALIKE):
        at = [raised.at for raised in alike]
        if not explained.isdisjoint(at):
            continue
        named_hosts = [raised.process.host for raised in alike if raised.process.host]
        who = f"{named_hosts[0]}: " if named_hosts else ""
        frame = f", raised at {alike[0].frame}" if alike[0].frame else ""
        hosts = _on(raised.process for raised in alike)
        shown = f"{who}{text}{frame} ({many(len(alike), 'traceback')}{hosts})"
        one = finding("log.exception", *at[:3], found=shown)
        yield one if is_cause else one._replace(follows="", next="")


def _settings(log: JobLog) -> Iterator[Finding]:
    """Yield versions, networks and variables in which processes differ."""
    for name, values in sorted(log.settings.items()):
        key = "other environment"
        if name in ("version", "network"):
            key = name
        elif ALIKE.search(name):
            key = "environment"
        if len(values) > 1:
            yield _differ(log, f"nccl.{key}", values, name)


def _differ(log: JobLog, key: str, values: dict[str, Setting], name: str) -> Finding:
    """Return that processes have different values.

    Something follows if two are of one communicator.
    """
    texts = [f"{value}{_on(setting.processes)}" for value, setting in values.items()]
    at = [setting.at for setting in values.values()]
    one = finding(key, *at, values="; ".join(texts[:MAX_NAMED]), name=name)
    for members in log.communicators.values():
        sides = [s for s in values.values() if not members.isdisjoint(s.processes)]
        if len(sides) > 1:
            return one
    return one._replace(follows="", next="")


def _slow_ways(log: JobLog) -> Iterator[Finding]:
    """Yield connections that go over sockets, without GPU-direct, or through a host's memory."""
    for way, (count, first, at) in log.ways.items():
        found = f"{many(count, 'line')} of connections by {way}, such as {first}"
        if way == NO_DIRECT and "GeForce" in log.settings:
            found += "; GeForce and TITAN GPUs do not support it"
            yield Finding("connection", found, at=(at,))
        else:
            yield finding(f"nccl.{way}", at, found=found)
    for network, setting in log.settings.get("network", {}).items():
        hosts = {process.host for process in setting.processes}
        if network == "Socket" and SOCKETS not in log.ways and len(hosts) > 1:
            found = "the network between hosts is sockets (`Using network Socket`)"
            found += _on(setting.processes)
            yield finding(f"nccl.{SOCKETS}", setting.at, found=found)


def _last_words(log: JobLog) -> Iterator[Finding]:
    """Yield what a reader of an unknown text would look for: the first traceback, the first errors, the last lines."""
    last_lines = list(chain.from_iterable(log.ends.values()))
    if not last_lines:
        return
    yield finding("log.not known")._replace(at=(last_lines[0].at,))
    shown = set()
    for raised in log.raised[:1]:
        shown.add(raised.at)
        who = f"{raised.process.host}: " if raised.process.host else ""
        frame = f", raised at {raised.frame}" if raised.frame else ""
        yield Finding("traceback", f"{who}{raised.text}{frame}", at=(raised.at,))
    for line in log.errors:
        if line.at not in shown:
            yield _line("first error", line)
    for lines in islice(log.ends.values(), MAX_ALIKE):
        for line in lines:
            yield _line("last line", line)


def _line(kind: str, line: LogLine) -> Finding:
    """Return a finding that shows a line as it is."""
    return Finding(kind, line.text.strip()[:MAX_MORE], at=(line.at,))


def _on(processes: Iterable[Process]) -> str:
    """Return the hosts, as far as lines name them."""
    hosts = sorted({process.host for process in processes} - {""})
    return f" on {named(hosts)}" if hosts else ""
