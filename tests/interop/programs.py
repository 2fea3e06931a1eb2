"""Programs in MSCCL XML, written out: one for each collective, and what they need."""

from xml.etree import ElementTree

# A step: its type, source, destination (such as "i0"), chunks, and "block.step" that it waits for.
Step = tuple[str, str, str, int, str]
Block = tuple[int, int, int, list[Step]]  # send, recv, chan, steps


def do(kind: str, src: str, dst: str = "", count: int = 1, after: str = "") -> Step:
    return kind, src, dst or src, count, after


def xml(
    coll: str,
    whole: int,
    gpus: list[list[Block]],
    scratch: int = 0,
    in_place: bool = True,
    **more: str,
) -> str:
    """The text; what is waited for carries hasdep."""
    told = {
        "name": "test",
        "proto": "Simple",
        "nchannels": "1",
        "nchunksperloop": str(whole),
        "ngpus": str(len(gpus)),
    }
    top = ElementTree.Element("algo", {**told, "coll": coll, "inplace": str(int(in_place)), **more})
    for g, blocks in enumerate(gpus):
        chunks = {"i_chunks": str(whole), "o_chunks": str(whole), "s_chunks": str(scratch)}
        gpu = ElementTree.SubElement(top, "gpu", {"id": str(g), **chunks})
        waited = {step[4] for _, _, _, steps in blocks for step in steps}
        for b, (send, recv, chan, steps) in enumerate(blocks):
            ends = {"send": str(send), "recv": str(recv), "chan": str(chan)}
            tb = ElementTree.SubElement(gpu, "tb", {"id": str(b), **ends})
            for s, (kind, src, dst, count, after) in enumerate(steps):
                depid, _, deps = (after or "-1.-1").partition(".")
                places = {"srcbuf": src[0], "srcoff": src[1:], "dstbuf": dst[0], "dstoff": dst[1:]}
                waits = {
                    "cnt": str(count),
                    "depid": depid,
                    "deps": deps,
                    "hasdep": str(int(f"{b}.{s}" in waited)),
                }
                ElementTree.SubElement(tb, "step", {"s": str(s), "type": kind, **places, **waits})
    return ElementTree.tostring(top, encoding="unicode")


def ring(p: int) -> str:
    """All-reduce in place, one block for each GPU, fused steps."""
    gpus = []
    for r in range(p):
        chunks = [f"i{(r - t) % p}" for t in range(2 * p)]
        steps = [
            do("s", chunks[0]),
            *(do("rrs", each) for each in chunks[1 : p - 1]),
            do("rrcs", chunks[p - 1]),
        ]
        steps += [*(do("rcs", each) for each in chunks[p : 2 * p - 2]), do("r", chunks[2 * p - 2])]
        gpus.append([((r + 1) % p, (r - 1) % p, 0, steps)])
    return xml("allreduce", p, gpus)


def all_pairs(p: int) -> str:
    """All-reduce in place: parts into scratch, added there by the block that waits for all, then sent to all."""
    gpus = []
    for r in range(p):
        others = [q for q in range(p) if q != r]
        steps = [do("nop", "i0", count=0, after=f"{b}.1") for b in range(2, p)]
        steps += [do("re", f"s{b}", f"i{r}", after="1.1" if not b else "") for b in range(p - 1)]
        last = len(steps) - 1
        blocks: list[Block] = [(-1, -1, 0, steps)]
        for b, q in enumerate(others):
            move = [
                do("s", f"i{q}"),
                do("r", f"s{b}"),
                do("s", f"i{r}", after=f"0.{last}"),
                do("r", f"i{q}"),
            ]
            blocks.append((q, q, 0, move))
        gpus.append(blocks)
    return xml("allreduce", p, gpus, scratch=p - 1)


def gather_ring(p: int) -> str:
    """All-gather out of place with a local copy, one block that sends and one that receives."""
    gpus = []
    for r in range(p):
        sends = [do("cpy", "i0", f"o{r}"), do("s", f"o{r}")]
        sends += [do("s", f"o{(r - t) % p}", after=f"1.{t - 1}") for t in range(1, p - 1)]
        receives = [do("r", f"o{(r - t) % p}") for t in range(1, p)]
        gpus.append([((r + 1) % p, -1, 0, sends), (-1, (r - 1) % p, 0, receives)])
    return xml("allgather", p, gpus, in_place=False, outofplace="1")


def direct(coll: str, p: int, kind: str, in_place: bool) -> str:
    """Every pair of GPUs exchanges one chunk: all-to-all, or reduce-scatter in a block that adds."""
    gpus = []
    for r in range(p):
        steps: list[Block] = [(q, -1, 0, [do("s", f"i{q}")]) for q in range(p) if q != r]
        into = (lambda q, r=r: f"i{r}") if kind == "rrc" else (lambda q: f"o{q}")
        for q in range(p):
            if q != r:
                at = len(steps)
                chained = kind == "rrc" and at > p - 1
                steps.append(
                    (-1, q, 0, [do(kind, into(q), after=f"{at - 1}.0" if chained else "")])
                )
        if kind == "r":
            steps.append((-1, -1, 0, [do("cpy", f"i{r}", f"o{r}")]))
        gpus.append(steps)
    return xml(coll, p, gpus, in_place=in_place)


def chain(coll: str, p: int) -> str:
    """Broadcast from GPU 0 or reduce to it, two chunks."""
    down = coll == "broadcast"
    gpus = []
    for r in range(p):
        prev, following = (r - 1, r + 1) if down else (r + 1, r - 1)
        first, last = (r == 0, r == p - 1) if down else (r == p - 1, r == 0)
        kind = "s" if first else ("r" if down else "rrc") if last else ("rcs" if down else "rrs")
        steps = [do(kind, "i0"), do(kind, "i1")]
        gpus.append([(-1 if last else following, -1 if first else prev, 0, steps)])
    return xml(coll, 2, gpus)


def star(coll: str, p: int) -> str:
    """Scatter from GPU 0, or gather at it."""
    out = coll == "scatter"
    own = [(-1, -1, 0, [do("cpy", "i0", "o0")])]
    root = [
        (q, -1, 0, [do("s", f"i{q}")]) if out else (-1, q, 0, [do("r", f"o{q}")])
        for q in range(1, p)
    ]
    leaf: list[Block] = [(-1, 0, 0, [do("r", "o0")]) if out else (0, -1, 0, [do("s", "i0")])]
    return xml(coll, p, [own + root, *[leaf] * (p - 1)], in_place=False)


PROGRAMS = {
    "ring": ring(3),
    "all_pairs": all_pairs(3),
    "gather_ring": gather_ring(3),
    "all_to_all": direct("alltoall", 3, "r", False),
    "reduce_scatter": direct("reduce_scatter", 3, "rrc", True),
    "broadcast": chain("broadcast", 3),
    "reduce": chain("reduce", 3),
    "scatter": star("scatter", 3),
    "gather": star("gather", 3),
}
