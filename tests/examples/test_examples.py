"""The examples run under torchrun and on emulated hosts, and what they train equals gloo's result and one process's."""

import re
import sys

import pytest

from collectives.algorithms import build
from collectives.core.verify import verify
from collectives.emulator import cluster
from command import finished
from places import PATIENCE, ROOT

pytestmark = pytest.mark.integration

LOSSES = (
    r"losses( \d\.\d{6}){10}\nparameters differ from gloo's by (\S+), from one process's by (\S+)\n"
)
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


def data_parallel_losses(ranks: str) -> list[float]:
    program = str(ROOT / "examples" / "data_parallel.py")
    done = finished([*TORCHRUN, ranks, program])
    assert done.returncode == 0, done.stderr
    found = re.findall(r"loss (\d\.\d{6})", done.stdout)
    return [float(loss) for loss in found]


@pytest.mark.extended
def test_data_parallel_ranks_have_the_losses_of_one_process() -> None:
    alone = data_parallel_losses("1")
    assert len(alone) == 5
    assert alone[-1] < alone[0]
    together = data_parallel_losses("4")
    assert together == pytest.approx(
        alone,
        abs=1e-5,
    )


@pytest.mark.extended
def test_the_cost_of_a_step_is_measured() -> None:
    command = [*TORCHRUN, "2", str(ROOT / "examples/step_cost.py"), "--width", "8", "--steps", "3"]
    done = finished(command)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"collectives \(auto\) to gloo: \d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)\n$", done.stdout
    )


@pytest.mark.parametrize("p", [1, 4, 9, 25])
def test_the_torus_is_right_and_each_rank_sends_the_least(p: int) -> None:
    schedule = build("all_reduce", f"{ROOT}/examples/torus.py:torus", p)
    verify(schedule)
    assert schedule.k == p
    sent = [
        sum(step.count[step.src == rank].sum() for step in schedule.steps()) for rank in range(p)
    ]
    assert sent == [2 * (p - 1)] * p


def test_the_torus_needs_a_square_number_of_ranks() -> None:
    with pytest.raises(ValueError, match="ranks of a torus: got 8, expected a square number"):
        build("all_reduce", f"{ROOT}/examples/torus.py:torus", 8)


def test_the_commands_of_the_torus_run() -> None:
    text = (ROOT / "examples/torus.py").read_text()
    commands = [line.split() for line in text.splitlines() if line.startswith("    collectives ")]
    assert [words[1] for words in commands] == ["verify", "show", "simulate", "bench"]
    for words in commands:
        few = ["--bytes", "1K", "--repetitions", "2"] if words[1] == "bench" else []
        done = finished([sys.executable, "-m", *words, *few], cwd=ROOT)
        assert done.returncode == 0, done.stderr
