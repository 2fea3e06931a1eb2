"""Wrong solutions of message passing."""

from course.wrong import Wrong

SENDS_FIRST = """\
        if mine % 2 == 0:
            comm.send(out, after)
            comm.recv(into, before)
        else:
            comm.recv(into, before)
            comm.send(out, after)
"""
PARENT = "mine - (1 << (mine.bit_length() - 1))"
CHILDREN = "range(mine.bit_length(), (comm.size - 1).bit_length())"
SEND_ON = "            comm.send(buffer, ranks[mine + (1 << step)])\n"
FAR_FIRST = "reversed(range((mine & -mine or 2 * comm.size).bit_length() - 1))"
SCATTER = """\
            comm.send(chunk, rank)
        elif comm.rank == rank:
            comm.recv(chunk, ranks[0])
"""
WHOLE = """\
            comm.send(buffer, rank)
        elif comm.rank == rank:
            whole = buffer.copy()
            comm.recv(whole, ranks[0])
            buffer[:] = whole
"""
ONE_BY_ONE = """\
            for element in range(len(chunk)):
                comm.send(chunk[element : element + 1], rank)
        elif comm.rank == rank:
            for element in range(len(chunk)):
                comm.recv(chunk[element : element + 1], ranks[0])
"""
RING = "    for step in range(comm.size - 1):\n"
GATHER_AND_BROADCAST = """\
    gather(comm, buffer)
    broadcast(comm, buffer)
    for step in ():
"""
RECEIVES = "comm.recv(buffer, ranks["
AS_FLOAT = f"""\
came = __import__("numpy").empty(len(buffer))
        comm.recv(came, ranks[{PARENT}])
        buffer[:] = came
"""

WRONG = [
    Wrong("drops the remainder", "any-length", {"min(chunk, larger)": "0"}, is_quick=True),
    Wrong(
        "bounds that nothing uses",
        "any-length",
        {
            "def bounds(n, p):": "def bounds(n, p):\n    return [0] * (p + 1)\n\n\ndef own_bounds(n, p):",
            "ends = bounds(": "ends = own_bounds(",
        },
        says={"any-length": "bounds(3, 4): got [0, 0, 0, 0, 0], expected [0, 1, 2, 3, 3]"},
    ),
    Wrong(
        "deadlocks with small buffers", "small-buffers", {"mine % 2 == 0": "True"}, is_quick=True
    ),
    Wrong(
        "deadlocks always",
        "all-gather any-p any-length dtypes steps messages bytes small-buffers received send-and-recv",
        {"mine % 2 == 0": "False"},
    ),
    Wrong(
        "rounds log2(p) down",
        "any-p tree steps messages small-buffers received",
        {"(comm.size - 1).bit_length()": "comm.size.bit_length() - 1"},
    ),
    Wrong(
        "hard-coded p",
        "any-p=crashed tree=crashed steps=crashed slow-rank=crashed messages=crashed bytes=crashed "
        "small-buffers=crashed received=crashed send-and-recv=crashed",
        {"if rank < p]": "if rank < 4]"},
    ),
    Wrong("ranks in the library's order", "*", {"rank for rank in ORDER if rank < p": "*range(p)"}),
    Wrong("a tree that goes far first", "tree", {PARENT: "mine & (mine - 1)", CHILDREN: FAR_FIRST}),
    Wrong("the small subtree first", "steps", {CHILDREN: f"reversed({CHILDREN})"}),
    Wrong("waits for the slow rank", "slow-rank", {"key=lambda rank: rank == SLOW": "key=int"}),
    Wrong("scatters whole buffers", "bytes", {SCATTER: WHOLE}),
    Wrong("scatters element by element", "messages", {SCATTER: ONE_BY_ONE}),
    Wrong("gathers, then broadcasts", "bytes steps", {RING: GATHER_AND_BROADCAST}),
    Wrong("works for float64 only", "dtypes", {f"{RECEIVES}{PARENT}])\n": AS_FLOAT}),
    Wrong(
        "leaves messages unreceived",
        "received small-buffers",
        {
            "comm.send(chunks[rank], ranks[0])": "comm.send(chunks[rank], ranks[0])\n            "
            * 2
        },
    ),
    Wrong(
        "calls sendrecv",
        "send-and-recv",
        {SENDS_FIRST: "        comm.sendrecv(out, after, into, before)\n"},
    ),
    Wrong(
        "one collective of four is wrong",
        "scatter any-p any-length dtypes messages small-buffers received send-and-recv bytes",
        {"comm.recv(chunk, ranks[0])": "comm.recv(chunk.copy(), ranks[0])"},
        points=100 - 8 - (10 + 10 + 5 + 5 + 5 + 5 + 5) / 4 - 1.67,
    ),
    Wrong(
        "data by another way than messages",
        "*",
        bypass=("broadcast", "scatter", "gather", "all_gather"),
        says={"gather": "received 0 bytes, expected at least 72: all data by comm"},
        points=0,
    ),
    Wrong(
        "returns a new array",
        "broadcast tree any-p any-length dtypes messages small-buffers received send-and-recv steps",
        {
            f"{RECEIVES}{PARENT}])\n": f"buffer = buffer.copy()\n        {RECEIVES}{PARENT}])\n",
            SEND_ON: SEND_ON + "    return buffer\n",
        },
        says={"broadcast": "returned an array, but its buffer is unchanged"},
    ),
]
