"""What c10d, NCCL and the profiler call a collective, in this library's names."""

import re

# The longer names first, because they have the shorter ones in them.
COLLECTIVES = {
    "allreduce": "all_reduce",
    "crossdevicereduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "sendrecv": "send and receive",
    "send": "send and receive",
    "recv": "send and receive",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}


def collective_of(name: str) -> str:
    """The collective that c10d or NCCL calls so.

    >>> [collective_of(name) for name in ("_allgather_base", "ReduceScatter_Sum_f32_RING_LL", "nonsense")]
    ['all_gather', 'reduce_scatter', 'nonsense']
    """
    squeezed = re.sub(r"[^a-z]", "", name.lower())
    return next((known for key, known in COLLECTIVES.items() if key in squeezed), name[:60])
