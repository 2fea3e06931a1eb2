"""torchrun restarts all ranks when one is killed, and the groups of the new ones meet."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import os, signal
import torch
from torch import distributed as dist
import collectives.torch_backend

dist.init_process_group("collectives")
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
part = dist.new_group([0, 1])
total = torch.full((3,), rank + 1.0)
dist.all_reduce(total)
if rank == 1 and attempt == "0":
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(total)
print(f"attempt {attempt}, rank {rank}: {total.tolist()}", flush=True)
dist.destroy_process_group()
"""


def test_ranks_that_torchrun_restarts_meet_again(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--max-restarts=2"]
    done = subprocess.run(
        [*command, str(file)], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"attempt 1, rank {rank}: [18.0, 18.0, 18.0]" for rank in range(3)]
