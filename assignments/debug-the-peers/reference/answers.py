"""Your answers: for each program what is wrong, where, and by how much, in the case that `cases.py` has for it.

Each function returns ``{"kind": …, "where": […], "how_much": …}``. ``kind`` is one of `KINDS`;
``where`` a list of numbers in ascending order, ``how_much`` a number. Their docstrings say which.
Numbers may be computed here.
"""

import variant

KINDS = (
    "counted twice",  # a contribution is in a sum more than once
    "data race",  # two writes to the same place, in no order
    "deadlock",  # ranks wait for each other
    "different algorithms",  # ranks do not follow the same one
    "off by one",  # a loop or a slice ends one too early or too late
    "overloaded ranks",  # some ranks have to send more than necessary, others less
    "stale data",  # a value is sent before it has been updated
    "untrue counter",  # a figure is computed where it should be observed
    "whole buffers",  # a message has more than its receiver needs
)


def hypercube():
    """Where: the ranks that rank `OBSERVER` counts more than once in the chunk with the wrong sum.

    How much: every rank r contributes r + 1; by how much is the sum too large? A sum too small is
    negative.
    """
    # solution: kind, where, how_much
    me = variant.CORNERS.index(variant.OBSERVER)
    twice = sorted(variant.CORNERS[me ^ mask] for mask in (0, 1, 4, 5))
    too_much = 2 * sum(rank + 1 for rank in twice) - 36
    return {"kind": "counted twice", "where": twice, "how_much": too_much}
    # end


def groups():
    """Where: the ranks that wait for each other.

    How much: how many ranks never return from the call.
    """
    # solution: kind, where, how_much
    stuck = next(group for group in variant.GROUPS if 0 not in group)
    return {"kind": "deadlock", "where": sorted(stuck), "how_much": len(stuck) + 1}
    # end


def trees():
    """Where: the ranks that have children in both trees.

    How much: how many bytes, for a buffer of `BYTES`, the busiest rank sends beyond twice the
    buffer.
    """
    # solution: kind, where, how_much
    inner = len(variant.PLACES) // 2
    both = set(variant.PLACES[:inner]) & set(variant.PLACES[1 : inner + 1])
    return {"kind": "overloaded ranks", "where": sorted(both), "how_much": variant.BYTES}
    # end


def ring():
    """Where: which of the messages of rank 0 are too long, in the order in which it sends them, from 0 on.

    How much: how many bytes a rank sends, divided by how many it has to send.
    """
    # solution: kind, where, how_much
    p = variant.RING
    return {
        "kind": "whole buffers",
        "where": list(range(p - 1, 2 * p - 2)),
        "how_much": (p + 1) / 2,
    }
    # end


def counted():
    """Where: the ranks that say more than they have sent.

    How much: what all ranks say together, less what they have sent together, in bytes.
    """
    # solution: kind, where, how_much
    errors = _said_less_sent()
    too_much = sorted(rank for rank, error in errors.items() if error > 0)
    return {"kind": "untrue counter", "where": too_much, "how_much": sum(errors.values())}
    # end


def choice():
    """Where: the ranks that choose another algorithm than most, at the shortest buffer for which ranks differ.

    How much: the elements (float64) of this buffer.
    """
    # solution: kind, where, how_much
    least = min(variant.ROOM)
    elements = least // (8 * len(variant.ROOM)) + 1
    return {
        "kind": "different algorithms",
        "where": [variant.ROOM.index(least)],
        "how_much": elements,
    }
    # end


# reference only
def _said_less_sent():
    """Up the tree a rank sends what its subtree fills, down what all fill.

    Each time 8 bytes more for the length.
    """
    p = len(variant.FILLED)
    filled = [variant.FILLED[(place + variant.ROOT) % p] for place in range(p)]
    errors = dict.fromkeys(range(p), 0)
    for place in range(p - 1, 0, -1):
        parent = place - (place & -place)
        up, down = filled[place], max(filled)
        for sender, sent in ((place, up), (parent, down)):
            errors[(sender + variant.ROOT) % p] += 8 * variant.ELEMENTS - 8 * sent - 8
        filled[parent] = max(filled[parent], up)
    return errors


# end
