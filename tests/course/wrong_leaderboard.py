"""Wrong schedules for the leaderboard."""

from course.wrong import Wrong

CHOICE = "return min(candidates(machine, n), key=lambda each: Model(each, machine, n).seconds())"
P = 'machine["nodes"] * machine["ranks_per_node"]'

WRONG = [
    Wrong(
        "the ring for everything",
        "ring near close score",
        {CHOICE: f"return ring({P})"},
        is_quick=True,
    ),
    Wrong("knows nothing of nodes", "near close score", {"if g == 1 or nodes == 1:": "if g:"}),
    # The race of the tests' secret has a power of two of ranks, so what is timed there is right.
    Wrong(
        "ranks beyond a power of two get no result",
        "proved",
        {", Step(rest - core, rest, 0)]": "]"},
    ),
    Wrong(
        "made for the practice machine",
        "*",
        {
            "    # solution: make the schedule": "    from variant import MACHINE\n\n    machine = MACHINE\n"
            "    # solution: make the schedule"
        },
    ),
    Wrong(
        "ten million chunks",
        "*",
        {CHOICE: f'return Schedule("all_reduce", {P}, 10**7, 1, lambda _: Step([], [], []))'},
        is_quick=True,
    ),
    Wrong(
        "a reduce-scatter only",
        "*",
        {CHOICE: f'return ring({P}).__class__("reduce_scatter", {P}, {P}, 0, None)'},
    ),
    Wrong(
        "the library's algorithm",
        "*=blocked",
        {
            CHOICE: f'from collectives.algorithms import ALGORITHMS\n\n    return ALGORITHMS["all_reduce", "ring"]({P})'
        },
    ),
]
