"""Wrong answers on the six programs, and repairs that are none."""

from course.wrong import Wrong

PROGRAMS = ("hypercube", "groups", "trees", "ring", "counted", "choice")
GUESS = "\n".join(
    f'def {name}():\n    return {{"kind": "deadlock", "where": [0], "how_much": 2}}\n'
    for name in PROGRAMS
)

WRONG = [
    Wrong(
        "guesses",
        "hypercube-found groups-found trees-found ring-found counted-found choice-found",
        text=GUESS,
        is_quick=True,
    ),
    Wrong("arrays for numbers", "ring-found", {"(p + 1) / 2": "__import__('numpy').ones(3)"}),
    Wrong(
        "one order for all",
        "hypercube-repaired",
        {"(first + step) %": "(first | step) %"},
        file="hypercube.py",
    ),
    Wrong(
        "all receive first",
        "groups-repaired",
        {"place == 0\n    # instead": "True\n    # instead"},
        file="groups.py",
    ),
    Wrong(
        "one tree twice",
        "trees-repaired",
        {"    return PLACES[::-1]\n    # instead": "    return PLACES\n    # instead"},
        file="trees.py",
    ),
    Wrong(
        "drops the remainder",
        "ring-repaired",
        {"(chunk + 1) * len(buffer) // p": "chunk * len(buffer) // p + len(buffer) // p"},
        file="ring.py",
    ),
    Wrong(
        "a formula again",
        "counted-repaired",
        {"8 + buffer[:filled].nbytes": "8 + buffer.nbytes"},
        file="counted.py",
    ),
    Wrong(
        "always the ring",
        "choice-repaired",
        {'"exchange" if fits(nbytes, room, comm.size) else "ring"': '"ring"'},
        file="choice.py",
        is_quick=True,
    ),
    Wrong(
        "asks one neighbour",
        "choice-repaired",
        {"range(1, comm.size):\n        came = np.zeros": "(1,):\n        came = np.zeros"},
        file="choice.py",
    ),
    Wrong(
        "all chunks on one link",
        "hypercube-repaired",
        {"(first + step) %": "(step) %"},
        file="hypercube.py",
        says={"hypercube-repaired": "sends 3 chunks to rank"},
    ),
    Wrong(
        "groups by another way than messages",
        "groups-repaired",
        file="groups.py",
        bypass=("total",),
    ),
    Wrong(
        "a ring by another way than messages",
        "ring-repaired",
        file="ring.py",
        bypass=("all_reduce",),
    ),
    Wrong(
        "counts nothing, by another way than messages",
        "counted-repaired",
        {"return 8 + buffer[:filled].nbytes": "return 0"},
        file="counted.py",
        bypass=("all_reduce",),
        says={"counted-repaired": "all data by comm"},
    ),
    Wrong(
        "a choice by another way than messages",
        "choice-repaired",
        file="choice.py",
        bypass=("all_reduce",),
    ),
]

RIGHT = [
    Wrong(
        "counts in floats",
        "",
        {"8 + buffer[:filled].nbytes": "8.0 + buffer[:filled].nbytes"},
        file="counted.py",
    ),
]
