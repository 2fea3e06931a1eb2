"""GPUs that ranks share: each rank's environment, MPS by a stand-in for its control program, and refusals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fake_gpus
from collectives.launch import launch, need_where
from collectives.nccl import gpus
from command import run, started
from places import PATIENCE, comes_true

pytestmark = pytest.mark.integration  # a guard of ours is a Python process

ON_LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
SHARING = {gpus.VARIABLE: "1", "NCCL_MAX_CTAS": "2"}


def wheel(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the metadata of an NCCL of this version; returns its library."""
    about = folder / f"nvidia_nccl_cu13-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: nvidia-nccl-cu13\nVersion: {version}\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    return folder / gpus.LIBRARY


@pytest.fixture
def daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fake_gpus.install(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("shown", "found"), [(None, ["0", "1", "2"]), ("2, 0", ["2", "0"]), ("", []), ("-1", [])]
)
def test_programs_see_the_gpus_that_they_are_shown(
    shown: str | None, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus.install(tmp_path, monkeypatch, gpus=3)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert gpus.visible() == found


def test_each_rank_on_loopback_is_a_host(daemons: Path) -> None:
    with gpus.shared(["rank0", "rank1", "rank2"], "lo") as made:
        places = {name: made.common[name] for name in gpus.PLACES}
        assert made.common == ON_LOOPBACK | SHARING | places
        assert made.own == [
            {"NCCL_HOSTID": f"rank{rank}", "CUDA_VISIBLE_DEVICES": "0"} for rank in range(3)
        ]
        assert len(fake_gpus.running(daemons)) == 1
    assert fake_gpus.running(daemons) == []
    assert not any(Path(place).exists() for place in places.values())


def test_nccl_gets_a_file_of_an_emulated_link(
    daemons: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gpus.shared(["host0", "host1"], "eth0", (5e-3, 25e6)) as made:
        file = Path(made.common["NCCL_TOPO_FILE"])
        assert 'name="eth0" speed="960" latency="1041.66667"' in file.read_text()
    assert not file.parent.exists()
    monkeypatch.setenv("NCCL_TOPO_FILE", "/etc/mine.xml")
    with gpus.shared(["host0", "host1"], "eth0", (5e-3, 25e6)) as made:
        assert "NCCL_TOPO_FILE" not in made.common


def test_hosts_of_two_ranks_have_a_gpu_each_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus.install(tmp_path, monkeypatch, gpus=2)
    library = wheel(tmp_path, "2.31.2", monkeypatch)
    monkeypatch.setenv("LD_PRELOAD", "/lib/other.so")
    with gpus.shared(["a", "a", "b", "b", "c", "c"], "eth0") as made:
        own = [(each["NCCL_HOSTID"], each["CUDA_VISIBLE_DEVICES"]) for each in made.own]
    assert own == [("a", "0"), ("a", "0"), ("b", "1"), ("b", "1"), ("c", "0"), ("c", "0")]
    several = {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "LD_PRELOAD": f"{library} /lib/other.so",
    }
    assert several.items() <= made.common.items()


def test_several_ranks_of_a_host_need_a_newer_nccl(
    daemons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path, "2.28.9", monkeypatch)
    with pytest.raises(ValueError, match=r"on one GPU: got NCCL 2\.28\.9, expected 2\.30 or newer"):
        gpus.shared(["a", "a"], "eth0").__enter__()
    assert daemons.read_text() == ""


@pytest.mark.parametrize(("ranks", "each"), [(8, "2"), (9, "1")])
def test_more_than_eight_ranks_of_a_gpu_have_one_thread_block_each(
    ranks: int, each: str, daemons: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(18))
    with gpus.shared([str(rank) for rank in range(ranks)], "lo") as made:
        assert made.common["NCCL_MAX_CTAS"] == each


def test_what_the_user_has_set_stays(daemons: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_MAX_CTAS", "NCCL_SOCKET_IFNAME", "NCCL_HOSTID"):
        monkeypatch.setenv(name, "mine")
    with gpus.shared(["rank0", "rank1"], "lo") as made:
        assert not {"NCCL_MAX_CTAS", "NCCL_SOCKET_IFNAME"} & set(made.common)
        assert made.own == [{"CUDA_VISIBLE_DEVICES": "0"}] * 2


def test_hosts_with_a_gpu_each_need_no_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemons = fake_gpus.install(tmp_path, monkeypatch, gpus=2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1))
    with gpus.shared(["host0", "host1"], "eth0") as made:
        assert made.common == ON_LOOPBACK | {"NCCL_SOCKET_IFNAME": "eth0"}
        assert [each["CUDA_VISIBLE_DEVICES"] for each in made.own] == ["0", "1"]
    assert daemons.read_text() == ""


def test_ranks_need_a_gpu_and_two_cores_each(
    daemons: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpus.need(8) == ["0"]
    with pytest.raises(
        ValueError,
        match="got 9, expected at most 8 on 16 cores, because two threads of each rank spin",
    ):
        gpus.need(9)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match="GPUs to share: got none"):
        gpus.need(1)


def test_a_running_mps_is_used_and_stays(
    daemons: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with gpus.mps() as places:
        for name, place in places.items():
            monkeypatch.setenv(name, place)
        (daemon,) = fake_gpus.running(daemons)
        with gpus.mps() as found:
            assert found == {}
        assert fake_gpus.running(daemons) == [daemon]
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("collectives: started MPS")
    assert second == "collectives: ranks share GPUs by the MPS that runs here"
    with gpus.mps() as places:  # the variables still name the folder of the one that has ended
        assert len(fake_gpus.running(daemons)) == 1
    assert fake_gpus.running(daemons) == []


def test_the_daemon_sees_all_gpus(daemons: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS numbers what it sees anew: a rank's CUDA_VISIBLE_DEVICES would name another GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with gpus.mps() as places:
        assert (Path(places[gpus.PLACES[0]]) / "sees").read_text() == ""


@pytest.mark.parametrize("refused", ["not permitted", None], ids=["refused", "absent"])
def test_without_mps_a_warning_says_that_times_mean_nothing(
    refused: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    daemons = fake_gpus.install(tmp_path, monkeypatch, refused=refused or "")
    if refused is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    with gpus.mps() as places:
        assert places == {}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"collectives: no MPS ({refused or 'nvidia-cuda-mps-control is not installed'}): "
    )
    assert line.endswith("so their times mean nothing")
    assert daemons.read_text() == ""


def test_an_error_in_the_block_ends_mps(daemons: Path) -> None:
    with pytest.raises(ZeroDivisionError), gpus.mps():
        len(fake_gpus.running(daemons)) / 0
    assert daemons.read_text() != ""
    assert fake_gpus.running(daemons) == []


HOLDS = """
import time
from collectives.cli import ending_by_signals
from collectives.nccl import gpus
with ending_by_signals(), gpus.mps() as places:
    print(places[gpus.PLACES[0]], flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    "how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name
)
def test_mps_ends_with_its_launcher_however_that_ends(how: signal.Signals, daemons: Path) -> None:
    pipe = subprocess.PIPE
    with started(
        [sys.executable, "-c", HOLDS], stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as launcher:
        folder = Path(launcher.stdout.readline().strip())
        assert len(fake_gpus.running(daemons)) == 1
        assert folder.is_dir()
        launcher.send_signal(how)
        launcher.wait(PATIENCE)
        assert comes_true(lambda: not fake_gpus.running(daemons))
        assert comes_true(lambda: not folder.exists())


@pytest.mark.parametrize("where", ["slurm", "mpirun", "cluster:5ms,25MB/s,mpirun"])
def test_other_launchers_share_no_gpus(where: str) -> None:
    need_where(where, 2)
    with pytest.raises(
        ValueError, match=f"sharing GPUs: got {where}, expected loopback, or cluster without"
    ):
        need_where(where, 2, share_gpus=True)


NAMES = (
    "NCCL_HOSTID",
    "NCCL_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_MAX_CTAS",
    gpus.VARIABLE,
)


@pytest.mark.parametrize("count", [1, 3])
def test_ranks_on_loopback_get_it(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemons = fake_gpus.install(tmp_path, monkeypatch, gpus=count)
    events = launch("environments", {"names": NAMES}, 3, timeout=PATIENCE, share_gpus=True)
    shared = [(f"rank{rank}", "lo", "0", "2", "1") for rank in range(3)]
    assert events == [{"environments": [*map(list, shared)] if count == 1 else [[None] * 5] * 3}]
    assert (daemons.read_text() != "", fake_gpus.running(daemons)) == (count == 1, [])


@pytest.mark.usefixtures("allowed")
def test_ranks_on_emulated_hosts_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on each of two hosts, by a newer NCCL.

    They see this machine's memory, as MPS needs it.
    """
    daemons = fake_gpus.install(tmp_path, monkeypatch)
    wheel(tmp_path, "2.31.2", monkeypatch)
    monkeypatch.setattr(gpus, "LIBRARY", "")  # nothing to preload
    seen = Path("/dev/shm") / tmp_path.name
    settings = {"names": [*NAMES, "NCCL_MULTI_RANK_GPU_ENABLE"], "exists": str(seen)}
    seen.touch()
    try:
        events = launch(
            "environments",
            settings,
            4,
            where="cluster:1ms,100MB/s,2",
            timeout=PATIENCE,
            share_gpus=True,
        )
    finally:
        seen.unlink()
    each = [[f"host{rank // 2}", "eth0", "0", "2", "1", "1"] for rank in range(4)]
    assert events == [{"environments": each, "exists": True}]
    assert (daemons.read_text() != "", fake_gpus.running(daemons)) == (True, [])


CLUSTER = ["cluster", "--hosts", "2", "--latency", "1ms", "--rate", "100MB/s"]
PRINTS = ["--", "sh", "-c", "echo $RANK $NCCL_HOSTID $NCCL_SOCKET_IFNAME $CUDA_VISIBLE_DEVICES"]


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("options", "cores", "lines", "said"),
    [
        (
            [],
            4,
            ["0 host0 eth0 0", "1 host1 eth0 0"],
            "collectives: started MPS, by which ranks share GPUs",
        ),
        (["--no-share-gpus"], 4, ["0", "1"], ""),
        (
            [],
            2,
            ["0", "1"],
            "collectives: COMMAND cannot use NCCL: ranks that share GPUs: got 2, expected at most 1",
        ),
        (
            ["--share-gpus"],
            2,
            [],
            "collectives: ranks that share GPUs: got 2, expected at most 1 on 2 cores",
        ),
    ],
    ids=["with a GPU", "not wanted", "too few cores", "too few cores for what is wanted"],
)
def test_a_command_on_emulated_hosts_finds_a_gpu(
    options: list[str],
    cores: int,
    lines: list[str],
    said: str,
    daemons: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    code, out, err = run(capfd, *CLUSTER, *options, *PRINTS)
    assert (code, sorted(out.splitlines())) == (0 if lines else 2, lines)
    assert err.startswith(said)
    assert len(err.splitlines()) == bool(said)
    assert fake_gpus.running(daemons) == []


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_what_runs_on_a_host_ends_with_its_launcher(
    how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On hosts that share GPUs no process 1 of a host ends all others."""
    fake_gpus.install(tmp_path, monkeypatch, gpus=2)
    command = [
        sys.executable,
        "-m",
        "collectives",
        *CLUSTER,
        "--share-gpus",
        "--",
        "sh",
        "-c",
        "echo $$; sleep 1000 & wait",
    ]
    with started(command, stdout=subprocess.PIPE, text=True) as launcher:
        ranks = [int(launcher.stdout.readline()) for _ in range(2)]
        assert all(Path(f"/proc/{pid}").exists() for pid in ranks)
        launcher.send_signal(how)
        launcher.wait(PATIENCE)
        assert comes_true(lambda: not any(map(fake_gpus.lives, ranks)))
