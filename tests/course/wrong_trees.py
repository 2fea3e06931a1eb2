"""Wrong trees."""

from course.wrong import Wrong

UP_AND_DOWN = 'then(reverse(to_all, "reduce", add=True), to_all, "all_reduce")'
BOTH_UP_AND_DOWN = 'then(reverse(to_all, "two reduces", add=True), to_all, "all_reduce")'
PARENT = "((up if up < p else role ^ lowest) + root) % p"

WRONG = [
    # NCCL 2.4.2 to 2.7.8: right sums, but for odd p the inner ranks of the first tree are inside
    # the second, too.
    Wrong(
        "mirrors for odd p",
        "ports roots balance bandwidth",
        {
            "return numbered(p, ROOT + SECOND)\n": "mirrored = numbered(p, 0)\n    place = ROOT + SECOND\n"
            "    parent = [NO_PARENT] * p\n    for role in range(1, p):\n"
            "        parent[(place - role) % p] = (place - mirrored[role]) % p\n    return parent\n"
        },
    ),
    Wrong(
        "second tree repeats the first's inner ranks",
        "ports roots balance bandwidth",
        {"numbered(p, ROOT + SECOND)": "numbered(p, ROOT + 2 * SECOND)"},
    ),
    Wrong(
        "adds on the way down",
        "*",
        {
            "made = [Step(*zip(*rows, strict=True))": "made = [Step(*zip(*rows, strict=True), add=True)"
        },
        points=0,
    ),
    Wrong(
        "hard-coded p",
        "tree root ports depth pipeline two-tree=crashed roots=crashed balance=crashed bandwidth=crashed",
        {"parent = [NO_PARENT] * p": "p = 8\n    parent = [NO_PARENT] * p"},
    ),
    Wrong(
        "root unshifted",
        "root roots",
        {"numbered(p, ROOT)": "numbered(p, 0)", "ROOT + SECOND)\n    # end": "SECOND)\n    # end"},
    ),
    Wrong(
        "chunks through the other tree",
        "roots",
        {
            "range(FIRST, 2 * segments, 2), range(1 - FIRST,": "range(1 - FIRST, 2 * segments, 2), range(FIRST,"
        },
        is_quick=True,
    ),
    Wrong(
        "one segment after the other",
        "pipeline bandwidth",
        {
            "+ 2 * (segments - 1))": "+ 2 * len(parent) * (segments - 1))",
            "first + 2 * segment]": "first + 2 * len(parent) * segment]",
        },
    ),
    Wrong("chains", "root roots depth bandwidth", {PARENT: "(role - 1 + root) % p"}),
    Wrong(
        "the second tree's chunks missing for odd p",
        "two-tree roots ports depth pipeline balance bandwidth",
        {"to_all = parallel(": "to_all = one if p % 2 else parallel("},
    ),
    Wrong(
        "ignores the colours",
        "ports pipeline bandwidth",
        {"after + (after + colour[rank]) % 2": "after"},
    ),
    Wrong(
        "a reduce only",
        "tree root ports depth pipeline",
        {UP_AND_DOWN: 'reverse(to_all, "reduce", add=True)'},
    ),
    Wrong(
        "a thousand million steps",
        "two-tree roots ports depth pipeline balance bandwidth",
        {BOTH_UP_AND_DOWN: 'Schedule("all_reduce", p, 2 * segments, 10**9, to_all.step)'},
        is_quick=True,
    ),
    Wrong(
        "the library's algorithm",
        "*=blocked",
        {
            "from variant import FIRST": "from collectives.algorithms import ALGORITHMS\nfrom variant import FIRST"
        },
    ),
]
