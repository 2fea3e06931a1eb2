"""Read and write programs in MSCCL XML: the dialect of RCCL's parser, and that of msccl-tools with fewer attributes.

Nobody has vouched for a file: no document type, no entity, nothing deep, nothing huge is read.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn
from xml.etree import ElementTree
from xml.parsers import expat

from collectives.core.contracts import CONTRACTS
from collectives.core.schedule import Schedule, check_ranks_only
from collectives.errors import short
from collectives_interop.lowering import lower
from collectives_interop.program import (
    KINDS,
    MAX_ELEMENTS,
    SLOTS,
    BufferOffset,
    Instruction,
    Program,
    Sizes,
    ThreadBlock,
    sizes,
)
from collectives_interop.prove import prove

COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "scatter": "scatter",
    "gather": "gather",
}

# Larger than any runtime allows. Cells of all GPUs times ranks bounds the table of what the
# contract asks for.
MAX_GPUS, MAX_CHANNEL = 1 << 10, 1 << 10
MAX_CHUNKS, MAX_COUNTS = 1 << 16, 1 << 24

# The largest programs that are published have 1.4 MB, four levels deep.
MAX_BYTES, MAX_DEPTH, MAX_VALUE = 1 << 24, 4, 200

WHOLE_NUMBER = re.compile(r"-?\d{1,9}", re.ASCII)

# Runtimes read attributes of at most 255 characters, in which an escaped character takes six.
MAX_NAME = 40


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
        """Return an attribute, one of the ``known`` words if there are any."""
        if name not in self.attributes:
            self.fail(f"<{self.name}>: got no attribute {name}, expected one")
        value = self.attributes[name]
        if known and value not in known:
            self.fail(f"{name}: got {short(value)}, expected one of {', '.join(known)}")
        return value

    def number(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """Return an attribute that is a whole number within limits.

        Without a default it must be there.
        """
        if default is not None and name not in self.attributes:
            return default
        text = self.word(name)
        if not WHOLE_NUMBER.fullmatch(text) or not least <= int(text) <= most:
            self.fail(
                f"{name}: got {short(text)}, expected a whole number from {least} to {most:,}"
            )
        return int(text)

    def of(self, *names: str) -> list["Element"]:
        """Return the children, all of which must have one of these names."""
        for child in self.children:
            if child.name not in names:
                got = child.name[:40]
                expected = "> or <".join(names) or "nothing"
                child.fail(f"in <{self.name}>: got <{got}>, expected <{expected}>")
        return self.children


def read(source: Path | bytes) -> Program:
    """Return the program in a file or a text; ValueError, one line, if there is none."""
    top = _parse(source if isinstance(source, bytes) else contents(source))
    if top.name != "algo":
        top.fail(f"got <{top.name[:40]}>, expected <algo>")
    collective = COLLECTIVES[top.word("coll", COLLECTIVES)]
    p = top.number("ngpus", 1, MAX_GPUS)
    whole = _chunks(top, collective, p)
    gpus = _gpus(top, p)
    size = sizes(collective, p, whole)
    scratch = [gpu.number("s_chunks", 0, MAX_CHUNKS) for gpu in gpus]
    blocks: list[ThreadBlock] = []
    steps: list[list[Element]] = []  # of each block
    for number, gpu in enumerate(gpus):
        room = {"i": size.i, "o": size.o, "s": scratch[number]}
        for element in gpu.children:
            if element.name == "tb":
                blocks.append(_block(element, number, p, room))
                steps.append(element.children)
    rooted = CONTRACTS[collective].rooted
    return Program(
        collective,
        p,
        whole,
        top.number("root", 0, p - 1, 0) if rooted else None,
        top.word("proto", SLOTS),
        _modes(top),
        tuple(blocks),
        tuple(scratch),
        tuple(_copies(gpus, size)),
        _waits(blocks, steps),
    )


def _chunks(top: Element, collective: str, p: int) -> int:
    whole = top.number("nchunksperloop", 1, MAX_CHUNKS)
    parts = CONTRACTS[collective].parts
    if parts and whole % p:
        top.fail(f"nchunksperloop: got {whole}, expected a multiple of the {p} GPUs")
    chunks = whole * p if parts == 2 else whole
    if chunks * p * p > MAX_COUNTS:
        top.fail(
            f"nchunksperloop: got {whole:,} for {p} GPUs, "
            "expected fewer: too many contributions to count"
        )
    return whole


def _modes(top: Element) -> tuple[bool, ...]:
    """Return the modes: in place (True), out of place (False), or both.

    Msccl-tools says only whether it is in place.
    """
    in_place = top.number("inplace", 0, 1)
    out_of_place = top.number("outofplace", 0, 1, default=1 - in_place)
    modes = []
    if in_place:
        modes.append(True)
    if out_of_place:
        modes.append(False)
    if not modes:
        top.fail("inplace and outofplace: got 0 and 0, expected 1 for one of them")
    return tuple(modes)


def _gpus(top: Element, p: int) -> list[Element]:
    """Return the GPUs in the order of their ids, which must be 0 to p - 1."""
    gpus = {gpu.number("id", 0, p - 1): gpu for gpu in top.of("gpu")}
    missing = [number for number in range(p) if number not in gpus]
    if missing or len(top.children) != p:
        raise ValueError(
            f"ids of <gpu>: got {len(top.children)} and none for GPU {missing[:1]}, "
            f"expected 0 to {p - 1} once each"
        )
    for gpu in top.children:
        gpu.of("tb", "copy")
        gpu.number("i_chunks", 0, MAX_CHUNKS)
        gpu.number("o_chunks", 0, MAX_CHUNKS)
    return [gpus[number] for number in range(p)]


def _block(element: Element, gpu: int, p: int, room: dict[str, int]) -> ThreadBlock:
    """Return a thread block of a GPU with ``room`` cells in its buffers."""
    send = element.number("send", -1, p - 1)
    receive = element.number("recv", -1, p - 1)
    if gpu in (send, receive):
        element.fail(f"send and recv of GPU {gpu}: got its own id, expected other GPUs or -1")
    own = element.number("id", 0, MAX_CHUNKS)
    # Of a block without peers the channel has no meaning, and early files have -1.
    lone = send < 0 and receive < 0
    channel = element.number("chan", -1 if lone else 0, MAX_CHANNEL)
    steps = []
    for t, step in enumerate(element.of("step")):
        step.of()
        step.number("s", t, t)
        steps.append(_step(step, send, receive, room))
    return ThreadBlock(gpu, own, send, receive, channel, tuple(steps))


def _step(element: Element, send: int, receive: int, room: dict[str, int]) -> Instruction:
    name = element.word("type", KINDS)
    kind = KINDS[name]
    count = element.number("cnt", 0 if name == "nop" else 1, MAX_CHUNKS)
    for peer, needed, verb in ((send, kind.sends, "send"), (receive, kind.receives, "recv")):
        if needed and peer < 0:
            element.fail(f"{verb} of the thread block: got -1, expected a peer for the step {name}")
    src = _place(element, "src", room, count, kind.reads)
    dst = _place(element, "dst", room, count, kind.stores)
    return Instruction(name, src, dst, count)


def _place(
    element: Element, side: str, room: dict[str, int], count: int, used: bool
) -> BufferOffset:
    """Return the cells that the step reads or writes; what it does not use may have any offset."""
    buffer = element.word(f"{side}buf", room)
    offset = element.number(f"{side}off", -1, MAX_CHUNKS)
    if used and not 0 <= offset <= room[buffer] - count:
        cells = f"cells {offset} to {offset + count - 1} of {buffer}"
        element.fail(
            f"{side}buf, {side}off, cnt: got {cells}, expected cells of its {room[buffer]}"
        )
    return BufferOffset(buffer, offset)


def _copies(gpus: list[Element], size: Sizes) -> Iterator[tuple[int, int, int]]:
    for number, gpu in enumerate(gpus):
        for element in gpu.children:
            if element.name == "copy":
                element.of()
                source = element.number("i_off", 0, size.i - 1)
                target = element.number("o_off", 0, size.o - 1)
                yield number, source, target


def _waits(blocks: list[ThreadBlock], elements: list[list[Element]]) -> dict[int, int]:
    """Return each step that waits, and for which; the other one must announce that it is done."""
    _check_ends(blocks)
    steps: list[Element] = []
    numbers: dict[tuple[int, int, int], int] = {}  # by GPU, id of the block, index in it
    gpu_of: list[int] = []
    for block, of_block in zip(blocks, elements, strict=True):
        for t, step in enumerate(of_block):
            numbers[block.gpu, block.id, t] = len(steps)
            steps.append(step)
            gpu_of.append(block.gpu)
    waits = {}
    for number, step in enumerate(steps):
        step.number("hasdep", 0, 1)
        block_id = step.number("depid", -1, MAX_CHUNKS)
        index = step.number("deps", -1, MAX_CHUNKS)
        if block_id < 0:
            continue
        gpu = gpu_of[number]
        target = numbers.get((gpu, block_id, index))
        if target is None:
            step.fail(
                f"depid and deps: got thread block {block_id}, step {index}, "
                f"expected a step of GPU {gpu}"
            )
        if not steps[target].number("hasdep", 0, 1):
            step.fail(
                f"hasdep of thread block {block_id}, step {index}: got 0, "
                "expected 1, because this step waits for it"
            )
        waits[number] = target
    return waits


def _check_ends(blocks: list[ThreadBlock]) -> None:
    """Raise unless each connection belongs to one thread block at each end."""
    ends: Counter[tuple[int, str]] = Counter()
    for block in blocks:
        ends[block.gpu, f"id {block.id}"] += 1
        if block.send >= 0:
            ends[block.gpu, f"send {block.send} on channel {block.channel}"] += 1
        if block.receive >= 0:
            ends[block.gpu, f"recv {block.receive} on channel {block.channel}"] += 1
    for (gpu, end), times in ends.items():
        if times > 1:
            raise ValueError(f"GPU {gpu}: got {times} thread blocks with {end}, expected one")


def contents(path: Path) -> bytes:
    """Return the bytes of an untrusted file, at most 16 MiB.

    Raises ValueError, one line, if it cannot be read.
    """
    try:
        if not path.is_file():
            raise ValueError("there is no such file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"size of the file: got more than {MAX_BYTES:,} bytes, expected at most that"
        )
    return data


def _parse(data: bytes) -> Element:
    """Return the outermost element of a text."""
    parser = expat.ParserCreate()
    top = Element("", {}, 0)
    open_elements = [top]
    count = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        element = Element(name, attributes, parser.CurrentLineNumber)
        if count > MAX_ELEMENTS:
            element.fail(f"elements: got more than {MAX_ELEMENTS:,}, expected at most that")
        if len(open_elements) > MAX_DEPTH:
            got = len(open_elements)
            element.fail(f"depth of <{name[:40]}>: got {got}, expected at most {MAX_DEPTH}")
        if any(len(value) > MAX_VALUE for value in attributes.values()):
            element.fail(f"an attribute of <{name[:40]}>: got more than {MAX_VALUE} characters")
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def refuse(*_: object) -> None:
        line = parser.CurrentLineNumber
        raise ValueError(f"line {line}: got a document type or an entity, expected elements alone")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_elements.pop()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, UnicodeError) as error:
        raise ValueError(f"not XML: {error}") from None
    return top.children[0]


class Dialect(NamedTuple):
    """The names that a runtime reads, and its limits: the size of its arrays."""

    name: str
    collectives: dict[str, str]
    says_out_of_place: bool  # and for which sizes, in attributes of <algo> that the other lacks
    steps: int  # of a thread block
    blocks: int  # of a GPU
    per_channel: int  # thread blocks of a GPU on a channel
    channels: int
    # Elements that one GPU keeps: the program, all GPUs, its own blocks and steps.
    nodes: int | None


COMMON = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}

# ROCm/rccl 0cbce2a, msccl_struct.h and msccl_parser.h; microsoft/msccl b23e9cd, msccl.h and
# devcomm.h. RCCL also fuses at most 16 consecutive local sums; a schedule has none.
RCCL = Dialect(
    name="RCCL",
    collectives=COMMON | {"reduce_scatter": "reducescatter"},
    says_out_of_place=True,
    steps=64,
    blocks=64,
    per_channel=32,
    channels=128,
    nodes=4095,
)
MSCCL_TOOLS = Dialect(
    name="MSCCL",
    collectives=COMMON
    | {"reduce_scatter": "reduce_scatter", "gather": "gather", "scatter": "scatter"},
    says_out_of_place=False,
    steps=256,
    blocks=216,
    per_channel=32,
    channels=32,
    nodes=None,
)
DIALECTS = {"rccl": RCCL, "msccl-tools": MSCCL_TOOLS}


def text(schedule: Schedule, name: str, dialect: str = "rccl", protocol: str = "Simple") -> str:
    """Return a schedule's program as text, with ``name`` as its name.

    All collectives but an all-to-all run in place. The runtime cuts large chunks into pieces and
    runs the whole program for each; the program itself has no loop. It is read back and proved
    first (`prove`).

    Raises ValueError if the dialect has no such collective or root, and if a limit of the runtime
    is too small. Raises ScheduleError if the schedule is wrong or has switches. Cost: about 0.2 ms
    an instruction.

    >>> from collectives.algorithms import ALGORITHMS
    >>> for line in text(ALGORITHMS["broadcast", "chain"](2), "chain", "msccl-tools").splitlines()[:3]:
    ...     print(line)
    <algo name="chain" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2" coll="broadcast" inplace="1">
      <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0">
        <tb id="0" send="1" recv="-1" chan="0">
    """
    check_ranks_only(schedule, "MSCCL, whose GPUs do the adding")
    reader = DIALECTS[dialect]
    if schedule.collective not in reader.collectives:
        why = "RCCL cuts one rank's part into chunks there, not the buffer"
        known = ", ".join(reader.collectives)
        raise ValueError(f"collective: got {schedule.collective}, expected {known}; {why}")
    if schedule.root:
        raise ValueError(f"root: got {schedule.root}, expected 0, because MSCCL XML names no root")
    program = lower(schedule, reader.channels, reader.per_channel, protocol)
    _check_limits(program, reader)
    written = _written(program, name, reader)
    prove(read(written.encode()))
    return written


def _check_limits(program: Program, reader: Dialect) -> None:
    """Raise ValueError for a program that does not fit into the runtime."""
    blocks: Counter[int] = Counter()  # by GPU
    per_channel: Counter[tuple[int, int]] = Counter()
    nodes: Counter[int] = Counter()
    for block in program.blocks:
        blocks[block.gpu] += 1
        nodes[block.gpu] += 1 + len(block.steps)
        if block.send >= 0 or block.receive >= 0:
            per_channel[block.gpu, block.channel] += 1
    steps = max((len(block.steps) for block in program.blocks), default=0)
    elements = 1 + program.p + max(nodes.values(), default=0)  # the program and all GPUs, too
    for what, got, most in (
        ("thread blocks of a GPU", max(blocks.values(), default=0), reader.blocks),
        (
            "thread blocks of a GPU on one channel",
            max(per_channel.values(), default=0),
            reader.per_channel,
        ),
        ("steps of a thread block", steps, reader.steps),
        ("XML elements that a GPU reads", elements, reader.nodes),
    ):
        if most is not None and got > most:
            raise ValueError(
                f"{what}: got {got}, expected at most {most}, a limit of {reader.name}"
            )


def _written(program: Program, name: str, reader: Dialect) -> str:
    """Return the text of a program in one mode and without copies."""
    in_place = program.modes[0]
    channels = max((block.channel for block in program.blocks), default=0) + 1
    top = _element(
        "algo",
        name=name[:MAX_NAME],
        proto=program.protocol,
        nchannels=channels,
        nchunksperloop=program.whole,
        ngpus=program.p,
        coll=reader.collectives[program.collective],
        inplace=int(in_place),
    )
    if reader.says_out_of_place:
        top.attrib |= {"outofplace": str(int(not in_place)), "minBytes": "0", "maxBytes": "0"}
    size = program.sizes
    for gpu, scratch in enumerate(program.scratch):
        top.append(_element("gpu", id=gpu, i_chunks=size.i, o_chunks=size.o, s_chunks=scratch))
    waited = set(program.waits.values())
    for first, block in zip(program.first, program.blocks, strict=False):
        element = _element(
            "tb", id=block.id, send=block.send, recv=block.receive, chan=block.channel
        )
        top[block.gpu].append(element)
        for number in range(first, first + len(block.steps)):
            element.append(_step_element(program, number, number in waited))
    ElementTree.indent(top)
    return ElementTree.tostring(top, encoding="unicode") + "\n"


def _step_element(program: Program, number: int, is_waited_for: bool) -> ElementTree.Element:
    step = program.steps[number]
    block_id, index = -1, -1
    if number in program.waits:
        other = program.waits[number]
        block_id = program.blocks[program.block_of[other]].id
        index = program.index(other)
    return _element(
        "step",
        s=program.index(number),
        type=step.name,
        srcbuf=step.src.buffer,
        srcoff=step.src.offset,
        dstbuf=step.dst.buffer,
        dstoff=step.dst.offset,
        cnt=step.chunks,
        depid=block_id,
        deps=index,
        hasdep=int(is_waited_for),
    )


def _element(tag: str, **attributes: str | int) -> ElementTree.Element:
    """Return an element with these attributes, in their order."""
    return ElementTree.Element(
        tag, {attribute: str(value) for attribute, value in attributes.items()}
    )
