"""MSCCL XML as a program: the dialect of RCCL's parser and that of msccl-tools, which leaves some attributes out.

Nobody has vouched for the file: no document type, no entity, nothing deep, nothing huge is read.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from collectives.contracts import CONTRACTS
from collectives.errors import short
from collectives.formats.layout import sizes
from collectives.formats.program import KINDS, SLOTS, BufferOffset, Instruction, Program, ThreadBlock

COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    **{name: name for name in ("broadcast", "reduce", "scatter", "gather")},
}

# Larger than any runtime allows. Cells of all GPUs times ranks bounds the table of what the contract asks for.
MOST_GPUS, MOST_CHUNKS, MOST_COUNTS, MOST_CHANNEL = 1 << 10, 1 << 16, 1 << 24, 1 << 10

# The largest programs that are published have 1.4 MB and 24,000 steps, four levels deep.
MOST_BYTES, MOST_ELEMENTS, MOST_DEPTH, LONGEST_VALUE = 1 << 24, 1 << 18, 4, 200

WHOLE_NUMBER = re.compile(r"-?\d{1,9}", re.ASCII)


@dataclass(frozen=True)
class Element:
    """One element: its name, its attributes, its children, and the line where it begins."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)

    def fail(self, what: str) -> NoReturn:
        """Raise a ValueError that names the line."""
        raise ValueError(f"line {self.line}: {what}")

    def word(self, name: str, known: Collection[str] = ()) -> str:
        """An attribute, one of the ``known`` words if there are any."""
        if name not in self.attributes:
            self.fail(f"<{self.name}>: got no attribute {name}, expected one")
        value = self.attributes[name]
        if known and value not in known:
            self.fail(f"{name}: got {short(value)}, expected one of {', '.join(known)}")
        return value

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """An attribute that is a whole number within limits; without a default it must be there."""
        if default is not None and name not in self.attributes:
            return default
        text = self.word(name)
        if not WHOLE_NUMBER.fullmatch(text) or not least <= int(text) <= most:
            self.fail(f"{name}: got {short(text)}, expected a whole number from {least} to {most:,}")
        return int(text)

    def of(self, *names: str) -> list["Element"]:
        """The children, all of which must have one of these names."""
        for child in self.children:
            if child.name not in names:
                child.fail(f"in <{self.name}>: got <{child.name[:40]}>, expected <{'> or <'.join(names) or 'nothing'}>")
        return self.children


def program(source: Path | bytes) -> Program:
    """The program in a file or a text; ValueError, one line, for what is none."""
    top = _parse(source if isinstance(source, bytes) else contents(source))
    if top.name != "algo":
        top.fail(f"got <{top.name[:40]}>, expected <algo>")
    collective = COLLECTIVES[top.word("coll", COLLECTIVES)]
    p = top.number("ngpus", 1, MOST_GPUS)
    whole, rooted = _chunks(top, collective, p), CONTRACTS[collective].rooted
    gpus = _numbered(top.of("gpu"), p)
    blocks = [(element, _block(element, gpu, p)) for gpu, each in enumerate(gpus) for element in _of(each, "tb")]
    return Program(
        collective,
        p,
        whole,
        top.number("root", 0, p - 1, 0) if rooted else None,
        top.word("proto", SLOTS),
        _modes(top),
        tuple(_filled(element, block, sizes(collective, p, whole), gpus) for element, block in blocks),
        tuple(gpu.number("s_chunks", 0, MOST_CHUNKS) for gpu in gpus),
        tuple(_copies(gpus, *sizes(collective, p, whole))),
        _waits(blocks),
    )


def _chunks(top: Element, collective: str, p: int) -> int:
    whole = top.number("nchunksperloop", 1, MOST_CHUNKS)
    if CONTRACTS[collective].parts and whole % p:
        top.fail(f"nchunksperloop: got {whole}, expected a multiple of the {p} GPUs")
    if whole * p * p * (p if CONTRACTS[collective].parts == 2 else 1) > MOST_COUNTS:
        top.fail(f"nchunksperloop: got {whole:,} for {p} GPUs, expected fewer: too many contributions to count")
    return whole


def _modes(top: Element) -> tuple[bool, ...]:
    """In place, out of place, or both; msccl-tools says only whether it is in place."""
    in_place = top.number("inplace", 0, 1)
    out = top.number("outofplace", 0, 1, 1 - in_place)
    if not in_place and not out:
        top.fail("inplace and outofplace: got 0 and 0, expected 1 for one of them")
    return (True,) * in_place + (False,) * out


def _numbered(gpus: list[Element], p: int) -> list[Element]:
    """The GPUs in the order of their ids, which must be 0 to p - 1."""
    ids = [gpu.number("id", 0, p - 1) for gpu in gpus]
    missing = sorted(set(range(p)) - set(ids))
    if missing or len(ids) != p:
        raise ValueError(
            f"ids of <gpu>: got {len(ids)} and none for GPU {missing[:1]}, expected 0 to {p - 1} once each"
        )
    for gpu in gpus:
        gpu.of("tb", "copy")
        gpu.number("i_chunks", 0, MOST_CHUNKS)
        gpu.number("o_chunks", 0, MOST_CHUNKS)
    return [gpu for _, gpu in sorted(zip(ids, gpus, strict=True), key=lambda each: each[0])]


def _of(element: Element, name: str) -> list[Element]:
    return [child for child in element.children if child.name == name]


def _block(element: Element, gpu: int, p: int) -> ThreadBlock:
    """A thread block, yet without steps."""
    send, receive = (element.number(name, -1, p - 1) for name in ("send", "recv"))
    if gpu in (send, receive):
        element.fail(f"send and recv of GPU {gpu}: got its own id, expected other GPUs or -1")
    lone = send < 0 and receive < 0  # then the channel has no meaning, and early files have -1
    own, channel = element.number("id", 0, MOST_CHUNKS), element.number("chan", -1 if lone else 0, MOST_CHANNEL)
    return ThreadBlock(gpu, own, send, receive, channel, ())


def _filled(element: Element, block: ThreadBlock, size: tuple[int, int], gpus: list[Element]) -> ThreadBlock:
    room = dict(zip("io", size, strict=True), s=gpus[block.gpu].number("s_chunks", 0, MOST_CHUNKS))
    return block._replace(steps=tuple(_step(t, each, block, room) for t, each in enumerate(element.of("step"))))


def _step(t: int, element: Element, block: ThreadBlock, room: dict[str, int]) -> Instruction:
    element.of()
    element.number("s", t, t)
    name = element.word("type", KINDS)
    kind = KINDS[name]
    count = element.number("cnt", 0 if name == "nop" else 1, MOST_CHUNKS)
    for peer, needed, verb in ((block.send, kind.sends, "send"), (block.receive, kind.receives, "recv")):
        if needed and peer < 0:
            element.fail(f"{verb} of the thread block: got -1, expected a peer for the step {name}")
    src = _place(element, "src", room, count, kind.reads)
    return Instruction(name, src, _place(element, "dst", room, count, kind.stores), count)


def _place(element: Element, side: str, room: dict[str, int], count: int, used: bool) -> BufferOffset:
    """Where the step reads or writes; what it does not use may have any offset."""
    buffer, offset = element.word(f"{side}buf", room), element.number(f"{side}off", -1, MOST_CHUNKS)
    if used and not 0 <= offset <= room[buffer] - count:
        cells = f"cells {offset} to {offset + count - 1} of {buffer}"
        element.fail(f"{side}buf, {side}off, cnt: got {cells}, expected cells of its {room[buffer]}")
    return BufferOffset(buffer, offset)


def _copies(gpus: list[Element], size_in: int, size_out: int) -> Iterator[tuple[int, int, int]]:
    for gpu, element in enumerate(gpus):
        for copy in _of(element, "copy"):
            copy.of()
            yield gpu, copy.number("i_off", 0, size_in - 1), copy.number("o_off", 0, size_out - 1)


def _waits(blocks: list[tuple[Element, ThreadBlock]]) -> dict[int, int]:
    """Each step that waits, and for which; the other one must announce that it is done."""
    _need_single([block for _, block in blocks])
    steps = [(block, t, step) for element, block in blocks for t, step in enumerate(element.children)]
    numbers = {(block.gpu, block.id, t): number for number, (block, t, _) in enumerate(steps)}
    waits = {}
    for number, (block, _, step) in enumerate(steps):
        step.number("hasdep", 0, 1)
        depid, deps = step.number("depid", -1, MOST_CHUNKS), step.number("deps", -1, MOST_CHUNKS)
        if depid < 0:
            continue
        target = numbers.get((block.gpu, depid, deps))
        if target is None:
            step.fail(f"depid and deps: got thread block {depid}, step {deps}, expected a step of GPU {block.gpu}")
        if not steps[target][2].number("hasdep", 0, 1):
            step.fail(f"hasdep of thread block {depid}, step {deps}: got 0, expected 1, because this step waits for it")
        waits[number] = target
    return waits


def _need_single(blocks: list[ThreadBlock]) -> None:
    """A connection belongs to one thread block at each end."""
    ends = Counter((b.gpu, "id", b.id, 0) for b in blocks)
    ends += Counter((b.gpu, "send", b.send, b.channel) for b in blocks if b.send >= 0)
    ends += Counter((b.gpu, "recv", b.receive, b.channel) for b in blocks if b.receive >= 0)
    for (gpu, what, value, channel), times in ends.items():
        if times > 1:
            where = "" if what == "id" else f" on channel {channel}"
            raise ValueError(f"GPU {gpu}: got {times} thread blocks with {what} {value}{where}, expected one")


def contents(path: Path) -> bytes:
    """The bytes of an untrusted file, at most 16 MiB. Raises ValueError, one line, for a file that cannot be read."""
    try:
        if not path.is_file():
            raise ValueError("there is no such file")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ValueError(f"size of the file: got more than {MOST_BYTES:,} bytes, expected at most that")
    return data


def _parse(data: bytes) -> Element:
    """The outermost element of a text."""
    parser, top = expat.ParserCreate(), Element("", {}, 0)
    open_elements, count = [top], 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        element = Element(name, attributes, parser.CurrentLineNumber)
        if count > MOST_ELEMENTS:
            element.fail(f"elements: got more than {MOST_ELEMENTS:,}, expected at most that")
        if len(open_elements) > MOST_DEPTH:
            element.fail(f"depth of <{name[:40]}>: got {len(open_elements)}, expected at most {MOST_DEPTH}")
        if any(len(value) > LONGEST_VALUE for value in attributes.values()):
            element.fail(f"an attribute of <{name[:40]}>: got more than {LONGEST_VALUE} characters")
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def refuse(*_: object) -> None:
        raise ValueError(f"line {parser.CurrentLineNumber}: got a document type or an entity, expected elements alone")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_elements.pop()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, UnicodeError) as error:
        raise ValueError(f"not XML: {error}") from None
    return top.children[0]
