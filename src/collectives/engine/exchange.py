"""Bytes from every rank to every rank of a group: what ranks tell each other before they call.

They travel as tensors of bytes. ``torch.distributed.all_gather_object`` would unpickle what a peer sends, and so
execute what the peer likes.
"""

import torch
from torch import distributed as dist


def everyones(mine: bytes, group: dist.ProcessGroup | None = None, device: torch.device | None = None) -> list[bytes]:
    """What each rank of the group has given, in the order of the ranks; all of them call it alike."""
    over = group or dist.group.WORLD
    if over is None:
        raise ValueError("no process group: call torch.distributed.init_process_group first")
    p = over.size()
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(p)]
    over.allgather([sizes], [torch.tensor([len(mine)], dtype=torch.int64, device=device)]).wait()
    longest = max(int(size) for size in sizes)
    if not longest:
        return [b""] * p
    padded = torch.tensor(list(mine.ljust(longest, b"\0")), dtype=torch.uint8, device=device)
    rooms = [torch.empty_like(padded) for _ in range(p)]
    over.allgather([rooms], [padded]).wait()
    return [bytes(room.tolist())[: int(size)] for room, size in zip(rooms, sizes, strict=True)]
