"""Read and write programs in MSCCL XML: the dialect of RCCL's parser, and that of msccl-tools with fewer attributes.

Nobody has vouched for a file: no document type, no entity, nothing deep, nothing huge is read.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn
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
    **{name: name for name in ("broadcast", "reduce", "scatter", "gather")},
}

# Larger than any runtime allows. Cells of all GPUs times ranks bounds the table of what the
# contract asks for.
MAX_GPUS, MAX_CHUNKS, MAX_COUNTS, MAX_CHANNEL = 1 << 10, 1 << 16, 1 << 24, 1 << 10

# The largest programs that are published have 1.4 MB, four levels deep.
MAX_BYTES, MAX_DEPTH, MAX_VALUE = 1 << 24, 4, 200

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
                child.fail(
                    f"in <{self.name}>: got <{child.name[:40]}>, expected <{'> or <'.join(names) or 'nothing'}>"
                )
        return self.children


def read(source: Path | bytes) -> Program:
    """Return the program in a file or a text; ValueError, one line, if there is none."""
    top = _parse(source if isinstance(source, bytes) else contents(source))
    if top.name != "algo":
        top.fail(f"got <{top.name[:40]}>, expected <algo>")
    collective = COLLECTIVES[top.word("coll", COLLECTIVES)]
    p = top.number("ngpus", 1, MAX_GPUS)
    whole, rooted = _chunks(top, collective, p), CONTRACTS[collective].rooted
    gpus, size = _gpus(top, p), sizes(collective, p, whole)
    scratch = tuple(gpu.number("s_chunks", 0, MAX_CHUNKS) for gpu in gpus)
    blocks = [
        (_block(child, gpu, p, {"i": size.i, "o": size.o, "s": scratch[gpu]}), child.children)
        for gpu, element in enumerate(gpus)
        for child in element.children
        if child.name == "tb"
    ]
    return Program(
        collective,
        p,
        whole,
        top.number("root", 0, p - 1, 0) if rooted else None,
        top.word("proto", SLOTS),
        _modes(top),
        tuple(block for block, _ in blocks),
        scratch,
        tuple(_copies(gpus, *size)),
        _waits(blocks),
    )


def _chunks(top: Element, collective: str, p: int) -> int:
    whole = top.number("nchunksperloop", 1, MAX_CHUNKS)
    if CONTRACTS[collective].parts and whole % p:
        top.fail(f"nchunksperloop: got {whole}, expected a multiple of the {p} GPUs")
    if whole * p * p * (p if CONTRACTS[collective].parts == 2 else 1) > MAX_COUNTS:
        top.fail(
            f"nchunksperloop: got {whole:,} for {p} GPUs, expected fewer: too many contributions to count"
        )
    return whole


def _modes(top: Element) -> tuple[bool, ...]:
    """Return the modes: in place, out of place, or both.

    Msccl-tools says only whether it is in place.
    """
    in_place = top.number("inplace", 0, 1)
    out = top.number("outofplace", 0, 1, 1 - in_place)
    if not in_place and not out:
        top.fail("inplace and outofplace: got 0 and 0, expected 1 for one of them")
    return (True,) * in_place + (False,) * out


def _gpus(top: Element, p: int) -> list[Element]:
    """Return the GPUs in the order of their ids, which must be 0 to p - 1."""
    gpus = {gpu.number("id", 0, p - 1): gpu for gpu in top.of("gpu")}
    missing = sorted(set(range(p)) - set(gpus))
    if missing or len(top.children) != p:
        raise ValueError(
            f"ids of <gpu>: got {len(top.children)} and none for GPU {missing[:1]}, expected 0 to {p - 1} once each"
        )
    for gpu in top.children:
        gpu.of("tb", "copy")
        gpu.number("i_chunks", 0, MAX_CHUNKS)
        gpu.number("o_chunks", 0, MAX_CHUNKS)
    return [gpus[number] for number in range(p)]


def _block(element: Element, gpu: int, p: int, room: dict[str, int]) -> ThreadBlock:
    """Return a thread block of a GPU with ``room`` cells in its buffers."""
    send, receive = (element.number(name, -1, p - 1) for name in ("send", "recv"))
    if gpu in (send, receive):
        element.fail(f"send and recv of GPU {gpu}: got its own id, expected other GPUs or -1")
    lone = send < 0 and receive < 0  # then the channel has no meaning, and early files have -1
    own, channel = (
        element.number("id", 0, MAX_CHUNKS),
        element.number("chan", -1 if lone else 0, MAX_CHANNEL),
    )
    steps = tuple(_step(t, each, send, receive, room) for t, each in enumerate(element.of("step")))
    return ThreadBlock(gpu, own, send, receive, channel, steps)


def _step(t: int, element: Element, send: int, receive: int, room: dict[str, int]) -> Instruction:
    element.of()
    element.number("s", t, t)
    name = element.word("type", KINDS)
    kind = KINDS[name]
    count = element.number("cnt", 0 if name == "nop" else 1, MAX_CHUNKS)
    for peer, needed, verb in ((send, kind.sends, "send"), (receive, kind.receives, "recv")):
        if needed and peer < 0:
            element.fail(f"{verb} of the thread block: got -1, expected a peer for the step {name}")
    src = _place(element, "src", room, count, kind.reads)
    return Instruction(name, src, _place(element, "dst", room, count, kind.stores), count)


def _place(
    element: Element, side: str, room: dict[str, int], count: int, used: bool
) -> BufferOffset:
    """Return the cells that the step reads or writes; what it does not use may have any offset."""
    buffer, offset = element.word(f"{side}buf", room), element.number(f"{side}off", -1, MAX_CHUNKS)
    if used and not 0 <= offset <= room[buffer] - count:
        cells = f"cells {offset} to {offset + count - 1} of {buffer}"
        element.fail(
            f"{side}buf, {side}off, cnt: got {cells}, expected cells of its {room[buffer]}"
        )
    return BufferOffset(buffer, offset)


def _copies(gpus: list[Element], size_in: int, size_out: int) -> Iterator[tuple[int, int, int]]:
    for gpu, element in enumerate(gpus):
        for copy in (child for child in element.children if child.name == "copy"):
            copy.of()
            yield gpu, copy.number("i_off", 0, size_in - 1), copy.number("o_off", 0, size_out - 1)


def _waits(blocks: list[tuple[ThreadBlock, list[Element]]]) -> dict[int, int]:
    """Return each step that waits, and for which; the other one must announce that it is done."""
    # A connection belongs to one thread block at each end.
    ends: Counter[tuple[int, str]] = Counter()
    for block, _ in blocks:
        ends[block.gpu, f"id {block.id}"] += 1
        ends[block.gpu, f"send {block.send} on channel {block.channel}"] += block.send >= 0
        ends[block.gpu, f"recv {block.receive} on channel {block.channel}"] += block.receive >= 0
    for (gpu, end), times in ends.items():
        if times > 1:
            raise ValueError(f"GPU {gpu}: got {times} thread blocks with {end}, expected one")
    steps = [(block, t, step) for block, elements in blocks for t, step in enumerate(elements)]
    numbers = {(block.gpu, block.id, t): number for number, (block, t, _) in enumerate(steps)}
    waits = {}
    for number, (block, _, step) in enumerate(steps):
        step.number("hasdep", 0, 1)
        depid, deps = step.number("depid", -1, MAX_CHUNKS), step.number("deps", -1, MAX_CHUNKS)
        if depid < 0:
            continue
        target = numbers.get((block.gpu, depid, deps))
        if target is None:
            step.fail(
                f"depid and deps: got thread block {depid}, step {deps}, expected a step of GPU {block.gpu}"
            )
        if not steps[target][2].number("hasdep", 0, 1):
            step.fail(
                f"hasdep of thread block {depid}, step {deps}: got 0, expected 1, because this step waits for it"
            )
        waits[number] = target
    return waits


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
    parser, top = expat.ParserCreate(), Element("", {}, 0)
    open_elements, count = [top], 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        element = Element(name, attributes, parser.CurrentLineNumber)
        if count > MAX_ELEMENTS:
            element.fail(f"elements: got more than {MAX_ELEMENTS:,}, expected at most that")
        if len(open_elements) > MAX_DEPTH:
            element.fail(
                f"depth of <{name[:40]}>: got {len(open_elements)}, expected at most {MAX_DEPTH}"
            )
        if any(len(value) > MAX_VALUE for value in attributes.values()):
            element.fail(f"an attribute of <{name[:40]}>: got more than {MAX_VALUE} characters")
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def refuse(*_: object) -> None:
        raise ValueError(
            f"line {parser.CurrentLineNumber}: got a document type or an entity, expected elements alone"
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_elements.pop()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, UnicodeError) as error:
        raise ValueError(f"not XML: {error}") from None
    return top.children[0]


class Dialect(NamedTuple):
    """The names that a runtime reads, and its limits: the size of its arrays."""

    name: str
    collectives: dict[str, str]
    attributes: str  # of <algo>, beyond those that both have
    steps: int  # of a thread block
    blocks: int  # of a GPU
    per_channel: int  # thread blocks of a GPU on a channel
    channels: int
    # Elements that one GPU keeps: the program, all GPUs, its own blocks and steps.
    nodes: int | None


COMMON = {"all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"} | {
    name: name for name in ("broadcast", "reduce")
}

# ROCm/rccl 0cbce2a, msccl_struct.h and msccl_parser.h; microsoft/msccl b23e9cd, msccl.h and
# devcomm.h. RCCL also fuses at most 16 consecutive local sums; a schedule has none.
RCCL = Dialect(
    name="RCCL",
    collectives=COMMON | {"reduce_scatter": "reducescatter"},
    attributes=' outofplace="{out}" minBytes="0" maxBytes="0"',
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
    attributes="",
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
    of = DIALECTS[dialect]
    if schedule.collective not in of.collectives:
        why = "RCCL cuts one rank's part into chunks there, not the buffer"
        raise ValueError(
            f"collective: got {schedule.collective}, expected {', '.join(of.collectives)}; {why}"
        )
    if schedule.root:
        raise ValueError(f"root: got {schedule.root}, expected 0, because MSCCL XML names no root")
    program = lower(schedule, of.channels, of.per_channel, protocol)
    _check_limits(program, of)
    written = "\n".join([*_lines(program, name, of), ""])
    prove(read(written.encode()))
    return written


def _check_limits(program: Program, of: Dialect) -> None:
    """Raise ValueError for a program that does not fit into the runtime."""
    blocks = program.blocks
    per_gpu = Counter(block.gpu for block in blocks)
    per_channel = Counter(
        (block.gpu, block.channel) for block in blocks if max(block.send, block.receive) >= 0
    )
    nodes = {gpu: 1 + program.p + count for gpu, count in per_gpu.items()}
    for block in blocks:
        nodes[block.gpu] += len(block.steps)
    for what, found, most in (
        ("thread blocks of a GPU", per_gpu.values(), of.blocks),
        ("thread blocks of a GPU on one channel", per_channel.values(), of.per_channel),
        ("steps of a thread block", [len(block.steps) for block in blocks], of.steps),
        ("XML elements that a GPU reads", nodes.values(), of.nodes),
    ):
        got = max(found, default=0)
        if most is not None and got > most:
            raise ValueError(f"{what}: got {got}, expected at most {most}, a limit of {of.name}")


def _lines(program: Program, name: str, of: Dialect) -> Iterator[str]:
    """Yield the lines of a program in one mode and without copies."""
    out = int(not program.modes[0])
    channels = max((block.channel for block in program.blocks), default=0) + 1
    yield (
        f'<algo name="{re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:60]}" proto="{program.protocol}" nchannels="{channels}" '
        f'nchunksperloop="{program.whole}" ngpus="{program.p}" coll="{of.collectives[program.collective]}" '
        f'inplace="{1 - out}"{of.attributes.format(out=out)}>'
    )
    size, waited, own = program.sizes, set(program.waits.values()), defaultdict(list)
    for first, block in zip(program.first, program.blocks, strict=False):
        own[block.gpu].append((first, block))
    for gpu, scratch in enumerate(program.scratch):
        yield f'  <gpu id="{gpu}" i_chunks="{size.i}" o_chunks="{size.o}" s_chunks="{scratch}">'
        for first, block in own[gpu]:
            ends = f'send="{block.send}" recv="{block.receive}" chan="{block.channel}"'
            yield f'    <tb id="{block.id}" {ends}>'
            yield from (
                _line(program, first + s, int(first + s in waited)) for s in range(len(block.steps))
            )
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


def _line(program: Program, number: int, hasdep: int) -> str:
    step, depid, deps = program.steps[number], -1, -1
    if number in program.waits:
        other = program.waits[number]
        depid, deps = program.blocks[program.block_of[other]].id, program.index(other)
    (src, at), (dst, to) = step.src, step.dst
    places = f'srcbuf="{src}" srcoff="{at}" dstbuf="{dst}" dstoff="{to}" cnt="{step.chunks}"'
    waits = f'depid="{depid}" deps="{deps}" hasdep="{hasdep}"'
    return f'      <step s="{program.index(number)}" type="{step.name}" {places} {waits}/>'
