"""The examples run under torchrun and on emulated hosts, and what they train equals gloo's result and one process's."""

import re
import sys

import pytest

from collectives.emulator import cluster
from command import finished
from places import PATIENCE, ROOT

pytestmark = pytest.mark.integration

LOSSES = r"losses( \d\.\d{6}){10}\nparameters differ from gloo's by (\S+), from one process's by (\S+)\n"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def need_equality(said: str) -> None:
    found = re.search(LOSSES, said)
    assert found, said
    assert max(float(found[2]), float(found[3])) < 1e-5


@pytest.mark.extended
@pytest.mark.parametrize(("program", "algorithm"), [("ddp", "two_tree"), ("fsdp2", "ring")])
def test_four_ranks_train_as_gloo_does(program: str, algorithm: str) -> None:
    command = [*TORCHRUN, "4", str(ROOT / "examples" / f"{program}.py"), "--algorithm", algorithm]
    done = finished(command)
    assert done.returncode == 0, done.stderr
    assert f" on 4 ranks by {algorithm}: " in done.stdout
    need_equality(done.stdout)


@pytest.mark.extended
@pytest.mark.parametrize(("program", "algorithm"), [("ddp", "auto"), ("fsdp2", "two_tree")])
def test_eight_emulated_hosts_train_as_gloo_does(
    allowed: None, program: str, algorithm: str, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, str(ROOT / "examples" / f"{program}.py")]
    chosen = {"COLLECTIVES_ALGORITHM": algorithm, "OMP_NUM_THREADS": "1"}
    with cluster(8, "1ms", "100MB/s") as hosts:
        assert hosts.run(command, timeout=PATIENCE, environment=chosen) == 0
    said = capfd.readouterr().out
    assert f" on 8 ranks by {algorithm}: " in said
    need_equality(said)


@pytest.mark.extended
def test_the_cost_of_a_step_is_measured() -> None:
    command = [*TORCHRUN, "2", str(ROOT / "examples/step_cost.py"), "--width", "8", "--steps", "3"]
    done = finished(command)
    assert done.returncode == 0, done.stderr
    assert re.search(r"collectives \(auto\) to gloo: \d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)\n$", done.stdout)
