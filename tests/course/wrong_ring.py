"""Wrong rings."""

import textwrap

from course.wrong import Wrong

IMPORT = "from variant import DIRECTION, SHIFT\n"
EXCHANGE = "    comm.sendrecv(out, after, into, before)\n"
SEND = "    comm.send(out, (comm.rank + DIRECTION) % comm.size)\n"
RECV = "    comm.recv(into, (comm.rank - DIRECTION) % comm.size)\n"
IN_TURN = f"""\
    if comm.rank % 2 == 0:
    {SEND}    {RECV}\
    else:
    {RECV}    {SEND}"""
REDUCE = "    share_reduce(comm, buffer)\n"
MEAN = '    if op == "mean":\n        buffer /= comm.size\n'
SHARE = "    share_only(comm, buffer)\n"
PASS_ON = "        _exchange(comm, _chunk(buffer, ends, out), _chunk(buffer, ends, into))\n"
PASS_ALL_ON = """\
        came = buffer.copy()
        _exchange(comm, buffer, came)
        _chunk(buffer, ends, into)[...] = _chunk(came, ends, into)
"""
AS_THEY_COME = """\
    passing, came = buffer.copy(), buffer.copy()
    for _ in range(comm.size - 1):
        _exchange(comm, passing, came)
        passing[...] = came
        buffer += came
"""
REMAINDER_LAST = "return [n // p * chunk for chunk in range(p)] + [n]"
NOT_A_NUMBER = """\
    if buffer.dtype == "f4":
        buffer[:] = np.nan
"""
THROUGH_RANK_0 = """\
    for rank in range(1, comm.size):
        if comm.rank == rank:
            comm.send(buffer, 0)
            comm.recv(buffer, 0)
        elif comm.rank == 0:
            came = buffer.copy()
            comm.recv(came, rank)
            buffer += came
    for rank in range(1, comm.size):
        if comm.rank == 0:
            comm.send(buffer, rank)
"""

IN_FLOAT64 = """\
    wide = buffer.astype(float)
    share_reduce(comm, wide)
    if op == "mean":
        wide /= comm.size
    share_only(comm, wide)
    buffer[:] = wide
"""

WRONG = [
    Wrong("drops the remainder", "any-length", {"min(chunk, larger)": "0"}, is_quick=True),
    Wrong(
        "the last chunk takes the remainder",
        "any-length",
        {"return [chunk * small + min(chunk, larger) for chunk in range(p + 1)]": REMAINDER_LAST},
        says={"any-length": "expected [0, 1, 2, 3, 3]: larger chunks first"},
        points=95,
    ),
    Wrong("not a number in float32", "dtypes same-bits", {SHARE: SHARE + NOT_A_NUMBER}),
    Wrong(
        "data by another way than messages",
        "*",
        bypass=("all_reduce", "share_reduce", "share_only"),
        says={
            "owners": "sent 0 bytes together, expected at least 288",
            "dtypes": "all data by comm",
        },
    ),
    Wrong(
        "returns a new array",
        "* owners=passed",
        {REDUCE: "    buffer = buffer.copy()\n" + REDUCE, SHARE: SHARE + "    return buffer\n"},
        says={"sum": "rank 0 returned an array, but its buffer is unchanged"},
    ),
    Wrong("averages twice", "mean", {"buffer /= comm.size": "buffer /= comm.size**2"}),
    Wrong("divides before it adds", "mean", {REDUCE + MEAN: MEAN + REDUCE}),
    Wrong(
        "hard-coded p", "any-p any-length mean owners bytes time", {"divmod(n, p)": "divmod(n, 4)"}
    ),
    Wrong("off by one chunk", "*", {"(step + 1 + each)": "(step + each)"}),
    Wrong(
        "sums in float64 and casts back", "dtypes", {REDUCE + MEAN + SHARE: IN_FLOAT64}, points=95
    ),
    Wrong(
        "sums what is no float in float64",
        "dtypes",
        {
            REDUCE + MEAN + SHARE: '    if buffer.dtype.kind == "f":\n'
            + textwrap.indent(REDUCE + MEAN + SHARE, "    ")
            + "        return\n"
            + IN_FLOAT64
        },
        points=95,
    ),
    Wrong(
        "all_reduce has a share_only of its own",
        "owners",
        {
            "def share_only(comm, buffer):": "def share_only(comm, buffer):\n    raise NotImplementedError\n\n\n"
            "def own_share_only(comm, buffer):",
            SHARE: SHARE.replace("share", "own_share"),
        },
        points=95,
        is_quick=True,
    ),
    Wrong("owners are not shifted", "owners", {"(rank + SHIFT) % p": "rank"}),
    Wrong(
        "goes the other way round", "neighbours", {IMPORT: IMPORT + "\nDIRECTION = -DIRECTION\n"}
    ),
    Wrong("deadlocks with small buffers", "small-buffers", {EXCHANGE: SEND + RECV}, is_quick=True),
    Wrong("deadlocks always", "*", {EXCHANGE: RECV + SEND}),
    Wrong("sends and receives in turn", "time", {EXCHANGE: IN_TURN}),
    Wrong("passes whole tensors", "bytes time", {PASS_ON: PASS_ALL_ON}),
    Wrong(
        "every rank adds in another order",
        "same-bits bytes time",
        {REDUCE: AS_THEY_COME, SHARE: ""},
    ),
    Wrong("through rank 0", "neighbours bytes time", {REDUCE: THROUGH_RANK_0, SHARE: ""}),
    Wrong(
        "works for float64 only",
        "dtypes same-bits",
        {"np.empty_like(_chunk(buffer, ends, into))": "np.empty(len(_chunk(buffer, ends, into)))"},
    ),
    Wrong(
        "leaves messages unreceived",
        "received small-buffers",
        {
            SHARE: SHARE
            + "    if comm.size > 1:\n        comm.send(buffer[:0], (comm.rank + DIRECTION) % comm.size)\n"
        },
    ),
    Wrong(
        "prints the expected output",
        "* owners=passed",
        {REDUCE + MEAN + SHARE: '    print("all ranks have the sum: [66. 70. 74.]")\n'},
    ),
    Wrong("imports torch", "*=blocked", {IMPORT: IMPORT + "import torch\n"}),
    Wrong(
        "calls the library",
        "*=blocked",
        {IMPORT: IMPORT + "from collectives.algorithms import ALGORITHMS\n"},
    ),
]

RIGHT = [
    Wrong("multiplies by 1/p", "", {"buffer /= comm.size": "buffer *= 1 / comm.size"}),
    Wrong(
        "an array of offsets",
        "",
        {
            "return [chunk * small": "return np.array([chunk * small",
            "range(p + 1)]": "range(p + 1)])",
        },
    ),
]
