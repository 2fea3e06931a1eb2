"""torchrun restarts all ranks when one is killed, and the groups of the new ones meet, also on two nodes."""

import os
import re
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from command import PIPES, started
from places import PATIENCE
from sweep import each

pytestmark = pytest.mark.integration

PROGRAM = """
import os, signal, sys
from pathlib import Path
import torch
from torch import distributed as dist
import collectives.torch_backend

dist.init_process_group("collectives")
rank, killed = dist.get_rank(), Path(sys.argv[1])
part = dist.new_group([0, 1])
total = torch.full((3,), rank + 1.0)
dist.all_reduce(total)
if rank == 1 and not killed.exists():
    killed.touch()
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(total, group=part)
print(f"rank {rank}: {total.tolist()}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("nodes", each([1, 2], few=[2]))
def test_ranks_that_torchrun_restarts_meet_again(nodes: int, tmp_path: Path) -> None:
    """On two nodes only the agent of the rank that was killed counts a restart."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        f"--nproc-per-node={2 // nodes}",
    ]
    command += [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        "--rdzv-id=test",
        "--max-restarts=2",
    ]
    command += [str(file), str(tmp_path / "killed")]
    with ExitStack() as stack:
        own = os.environ | {"OMP_NUM_THREADS": "1"}
        agents = [stack.enter_context(started(command, env=own, **PIPES)) for _ in range(nodes)]
        said = [agent.communicate(timeout=PATIENCE) for agent in agents]
    assert [agent.returncode for agent in agents] == [0] * nodes, said
    # Ranks write their lines at once.
    lines = re.findall(r"rank \d: \[.*?\]", "".join(out for out, _ in said))
    assert sorted(lines) == [f"rank {r}: [6.0, 6.0, 6.0]" for r in range(2)]
