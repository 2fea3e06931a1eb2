"""MSCCL XML as a program: the dialect of RCCL's parser and that of msccl-tools, which leaves some attributes out."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from collectives.contracts import CONTRACTS
from collectives.formats.elements import Element, parse, read
from collectives.formats.layout import sizes
from collectives.formats.program import KINDS, SLOTS, Block, Place, Program, Step

COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    **{name: name for name in ("broadcast", "reduce", "scatter", "gather")},
}

# Larger than any runtime allows. Cells of all GPUs times ranks bounds the table of what the contract asks for.
MOST_GPUS, MOST_CHUNKS, MOST_COUNTS, MOST_CHANNEL = 1 << 10, 1 << 16, 1 << 26, 1 << 10


def program(source: Path | bytes) -> Program:
    """The program in a file or a text; ValueError, one line, for what is none."""
    top = parse(source) if isinstance(source, bytes) else read(source)
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


def _block(element: Element, gpu: int, p: int) -> Block:
    """A thread block, yet without steps."""
    send, receive = (element.number(name, -1, p - 1) for name in ("send", "recv"))
    if gpu in (send, receive):
        element.fail(f"send and recv of GPU {gpu}: got its own id, expected other GPUs or -1")
    lone = send < 0 and receive < 0  # then the channel has no meaning, and early files have -1
    own, channel = element.number("id", 0, MOST_CHUNKS), element.number("chan", -1 if lone else 0, MOST_CHANNEL)
    return Block(gpu, own, send, receive, channel, ())


def _filled(element: Element, block: Block, size: tuple[int, int], gpus: list[Element]) -> Block:
    room = dict(zip("io", size, strict=True), s=gpus[block.gpu].number("s_chunks", 0, MOST_CHUNKS))
    return block._replace(steps=tuple(_step(t, each, block, room) for t, each in enumerate(element.of("step"))))


def _step(t: int, element: Element, block: Block, room: dict[str, int]) -> Step:
    element.of()
    element.number("s", t, t)
    name = element.word("type", KINDS)
    kind = KINDS[name]
    count = element.number("cnt", 0 if name == "nop" else 1, MOST_CHUNKS)
    for peer, needed, verb in ((block.send, kind.sends, "send"), (block.receive, kind.receives, "recv")):
        if needed and peer < 0:
            element.fail(f"{verb} of the thread block: got -1, expected a peer for the step {name}")
    src = _place(element, "src", room, count, kind.reads)
    return Step(name, src, _place(element, "dst", room, count, kind.stores), count)


def _place(element: Element, side: str, room: dict[str, int], count: int, used: bool) -> Place:
    """Where the step reads or writes; what it does not use may have any offset."""
    buffer, offset = element.word(f"{side}buf", room), element.number(f"{side}off", -1, MOST_CHUNKS)
    if used and not 0 <= offset <= room[buffer] - count:
        cells = f"cells {offset} to {offset + count - 1} of {buffer}"
        element.fail(f"{side}buf, {side}off, cnt: got {cells}, expected cells of its {room[buffer]}")
    return Place(buffer, offset)


def _copies(gpus: list[Element], size_in: int, size_out: int) -> Iterator[tuple[int, int, int]]:
    for gpu, element in enumerate(gpus):
        for copy in _of(element, "copy"):
            copy.of()
            yield gpu, copy.number("i_off", 0, size_in - 1), copy.number("o_off", 0, size_out - 1)


def _waits(blocks: list[tuple[Element, Block]]) -> dict[int, int]:
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


def _need_single(blocks: list[Block]) -> None:
    """A connection belongs to one thread block at each end."""
    ends = Counter((b.gpu, "id", b.id, 0) for b in blocks)
    ends += Counter((b.gpu, "send", b.send, b.channel) for b in blocks if b.send >= 0)
    ends += Counter((b.gpu, "recv", b.receive, b.channel) for b in blocks if b.receive >= 0)
    for (gpu, what, value, channel), times in ends.items():
        if times > 1:
            where = "" if what == "id" else f" on channel {channel}"
            raise ValueError(f"GPU {gpu}: got {times} thread blocks with {what} {value}{where}, expected one")
