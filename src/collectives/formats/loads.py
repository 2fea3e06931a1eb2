"""What a program sends over each link, in buffers, beside the least that any algorithm sends over the busiest."""

from collections import Counter
from typing import NamedTuple

from collectives.contracts import CONTRACTS
from collectives.formats.order import Order
from collectives.formats.program import Program


class Loads(NamedTuple):
    """Multiples of the buffer's size, which is counted as for bus bandwidth."""

    busiest_sent: float  # what the busiest sender sends in all
    busiest_received: float
    busiest_link: float  # the most from one GPU to one other
    least: float  # what some GPU sends or receives in any algorithm


def loads(program: Program, order: Order) -> Loads:
    """Count the chunks of all messages.

    >>> from collectives.formats.program import Block, Place, Step
    >>> swap = Step("s", Place("i", 0), Place("i", 0), 1), Step("rrc", Place("i", 0), Place("i", 0), 1)
    >>> blocks = Block(0, 0, 1, 1, 0, swap), Block(1, 0, 0, 0, 0, swap)
    >>> both = Program("all_reduce", 2, 1, None, "Simple", (True,), blocks, (0, 0), (), {})
    >>> loads(both, Order(both))
    Loads(busiest_sent=1.0, busiest_received=1.0, busiest_link=1.0, least=1.0)
    """
    links: Counter[tuple[int, int]] = Counter()
    for receive, send in order.sender.items():
        links[program.gpu_of(send), program.gpu_of(receive)] += program.steps[send].chunks
    sent, received = Counter[int](), Counter[int]()
    for (src, dst), chunks in links.items():
        sent[src] += chunks
        received[dst] += chunks
    egress, ingress, link = (max(each.values(), default=0) / program.whole for each in (sent, received, links))
    return Loads(egress, ingress, link, CONTRACTS[program.collective].factor(program.p))
