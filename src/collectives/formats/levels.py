"""The earliest step of each message: a longest path where some messages come after others, some only no earlier."""

from collections.abc import Iterable

Edge = tuple[int, int, int]  # one message, another, and how many steps later that comes at least: 0 or 1
Graph = list[list[int]]


class CycleError(ValueError):
    """A message comes after itself."""

    def __init__(self, message: int) -> None:
        super().__init__(f"message {message} comes after itself")
        self.message = message


def levels(count: int, edges: Iterable[Edge]) -> list[int]:
    """The earliest step of each of ``count`` messages; CycleError if there is none.

    >>> levels(3, [(0, 1, 1), (1, 2, 0), (2, 1, 0)])
    [0, 1, 1]
    """
    edges = set(edges)
    group = _groups(count, edges)
    into: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for one, other, later in edges:
        if group[one] != group[other]:
            into[group[other]].append((group[one], later))
        elif later:
            raise CycleError(one)
    level: list[int] = []
    for before in into:
        level.append(max((level[each] + later for each, later in before), default=0))
    return [level[each] for each in group]


def _groups(count: int, edges: set[Edge]) -> list[int]:
    """A number for each message, the same where none comes earlier than the other, and else in an order (Kosaraju)."""
    behind: Graph = [[] for _ in range(count)]
    before: Graph = [[] for _ in range(count)]
    for one, other, _ in edges:
        behind[one].append(other)
        before[other].append(one)
    group, number = [-1] * count, 0
    for start in reversed(_finished(behind)):
        todo = [start] if group[start] < 0 else []
        for at in todo:
            if group[at] < 0:
                group[at] = number
                todo += [each for each in before[at] if group[each] < 0]
        number += bool(todo)
    return group


def _finished(behind: Graph) -> list[int]:
    """Depth first: each message after all that were found behind it."""
    seen, finished = bytearray(len(behind)), []
    for start in range(len(behind)):
        path = [] if seen[start] else [(start, iter(behind[start]))]
        seen[start] = True
        while path:
            following = next((each for each in path[-1][1] if not seen[each]), None)
            if following is None:
                finished.append(path.pop()[0])
            else:
                seen[following] = True
                path.append((following, iter(behind[following])))
    return finished
