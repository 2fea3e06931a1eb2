"""Programs with one edit: of an offset, a buffer, a type, a count, a peer, a dependency, or of the order of steps."""

import random
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

Tree = ElementTree.Element
# Of the program, a block, and a step of it.
Edit = Callable[[random.Random, Tree, Tree, Tree], None]


def shift(side: str) -> Edit:
    def edit(rng: random.Random, top: Tree, tb: Tree, step: Tree) -> None:
        step.set(side, str(int(step.get(side)) + rng.choice((-1, 1))))

    return edit


def swap_buffer(side: str) -> Edit:
    def edit(rng: random.Random, top: Tree, tb: Tree, step: Tree) -> None:
        step.set(side, rng.choice("ios".replace(step.get(side), "")))

    return edit


def change_type(rng: random.Random, top: Tree, tb: Tree, step: Tree) -> None:
    step.set("type", rng.choice(("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")))


def change_count(rng: random.Random, top: Tree, tb: Tree, step: Tree) -> None:
    step.set("cnt", str(int(step.get("cnt")) + 1))


def change_peer(rng: random.Random, top: Tree, tb: Tree, step: Tree) -> None:
    tb.set(rng.choice(("send", "recv")), str(rng.randrange(int(top.get("ngpus")))))


def drop_wait(rng: random.Random, top: Tree, tb: Tree, step: Tree) -> None:
    step.set("depid", "-1")
    step.set("deps", "-1")


def wait_for_another(rng: random.Random, top: Tree, tb: Tree, step: Tree) -> None:
    gpu = next(gpu for gpu in top if tb in list(gpu))
    block = rng.choice(list(gpu))
    other = rng.choice(list(block))
    other.set("hasdep", "1")
    step.set("depid", block.get("id"))
    step.set("deps", other.get("s"))


def drop_step(rng: random.Random, top: Tree, tb: Tree, step: Tree) -> None:
    """A step that does nothing in its place, so that all others keep their numbers."""
    step.set("type", "nop")


def swap_steps(rng: random.Random, top: Tree, tb: Tree, step: Tree) -> None:
    steps = list(tb)
    other = steps[(steps.index(step) + 1) % len(steps)]
    step.attrib, other.attrib = dict(other.attrib), dict(step.attrib)
    for number, each in enumerate(steps):
        each.set("s", str(number))


EDITS: list[Edit] = [
    *(
        shift("srcoff"),
        shift("dstoff"),
        swap_buffer("srcbuf"),
        swap_buffer("dstbuf"),
        change_type,
        change_count,
    ),
    *(change_peer, drop_wait, wait_for_another, drop_step, swap_steps),
]


def mutants(text: str, seed: int) -> Iterator[str]:
    """Endlessly many texts, each with one edit, and each different from the program."""
    rng = random.Random(seed)
    plain = ElementTree.tostring(ElementTree.fromstring(text))
    while True:
        top = ElementTree.fromstring(text)
        tb = rng.choice([tb for gpu in top for tb in gpu if len(tb)])
        rng.choice(EDITS)(rng, top, tb, rng.choice(list(tb)))
        if ElementTree.tostring(top) != plain:
            yield ElementTree.tostring(top, encoding="unicode")
