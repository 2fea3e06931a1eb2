"""Every back end against expected values: one launch for each and each number of ranks, hundreds of checks in it."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist

import fake_gpus
from collectives.backends import (
    BACKENDS,
    backend,
    horovod,
    mpi,
    nccl,
    need,
    open_mpi,
    presence,
)
from collectives.backends.torch_native import OnGpus
from collectives.bench import DTYPES, OPS, Settings, bench
from collectives.bench.settings import group_by_launch
from collectives.core.contracts import CONTRACTS, ROOTED
from collectives.engine.call import Call
from collectives.launch import RankError, launch, programs
from collectives.nccl import gpus
from collectives.nccl.topology_file import topology_file
from places import PATIENCE
from sweep import each


def checks(name: str, p: int) -> Counter[str]:
    """How many checks passed of each collective; any that failed fails here."""
    events = launch(
        "backend_cases",
        {"backend": name},
        p,
        where=backend(name).launcher or "loopback",
        timeout=PATIENCE,
    )
    assert [event["case"] for event in events if not event["ok"]] == []
    return Counter(event["case"].split()[0] for event in events)


@pytest.mark.integration
@pytest.mark.parametrize("p", each([1, 3, 4], few=[3]))
@pytest.mark.parametrize("name", each(["gloo", "horovod", "mpi"], few=["gloo", "mpi"]))
def test_every_collective_that_a_back_end_has(name: str, p: int) -> None:
    counted = checks(name, p)
    assert set(counted) == set(backend(name).collectives)
    assert min(counted.values()) >= 12
    assert len(counted) == (5 if name == "horovod" else 8)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["p2p", "mpi"])
def test_a_persistent_call_reads_and_writes_the_same_tensors_again_and_again(
    name: str,
) -> None:
    """Every call of every collective is checked on data that were written after it was prepared."""
    once = {
        "backends": [name],
        "persistent": True,
        "ranks": 3,
        "bytes": [12, 4092],
        "repetitions": 5,
    }
    wanted = [
        Settings(collective=collective, root=2 * (collective in ROOTED), **once)
        for collective in CONTRACTS
    ]
    rows = bench([*wanted, Settings(**once, back_to_back=True)]).rows
    assert [(row["collective"], row["persistent"], row["wrong"]) for row in rows] == [
        (collective, True, 0) for collective in [*CONTRACTS, "all_reduce"] for _ in once["bytes"]
    ]
    assert Counter(row["timing"] for row in rows) == {"met": 16, "back_to_back": 2}


@pytest.mark.integration
def test_open_mpi_takes_the_algorithm_that_is_asked_for_and_else_its_own() -> None:
    """Each adds in an order of its own, which shows in how sums of floats are rounded."""
    algorithms = ["ring", "default", "basic_linear", "recursive_doubling"]
    job = {"backend": "mpi", "do": "order", "algorithms": algorithms}
    events = launch("backend_cases", job, 4, where="mpirun", timeout=PATIENCE)
    assert len(events) == 3 * len(algorithms)
    orders = {tuple(event["case"].split(": ")) for event in events if event["ok"]}
    assert {(algorithm, order) for algorithm, order in orders if algorithm != "default"} == {
        ("ring", "around a ring"),
        ("basic_linear", "in turn"),
        ("recursive_doubling", "by halves"),
    }
    assert ("default", "around a ring") not in orders


def test_an_algorithm_of_tuned_has_a_name_and_a_number() -> None:
    for number, name in enumerate(open_mpi.ALGORITHMS, start=1):
        expected = (open_mpi.TUNED, number)
        assert [open_mpi.chosen(typed) for typed in (name, f"tuned:{name}", f"tuned:{number}")] == [
            expected
        ] * 3
    for wrong in ("", "tuned:", "tuned:0", "tuned:7", "3", "ring:3", "sm:1", "tuned:ring:4"):
        with pytest.raises(ValueError, match=f"^unknown algorithm 'mpi:{wrong}'; known are basic_"):
            open_mpi.chosen(wrong)


@pytest.mark.integration
def test_open_mpi_takes_the_component_that_is_asked_for(tmp_path: Path) -> None:
    """Open MPI prints which of them it enables for a communicator: the last one comes first."""
    program = tmp_path / "ask.py"
    program.write_text(
        "from mpi4py import MPI\n"
        "from collectives.backends.open_mpi import communicator\n"
        "for component in ('sm', 'adapt', 'tuned'): communicator(MPI, component)\n"
    )
    asked = subprocess.run(
        [*programs.mpirun_command(2, []), sys.executable, program],
        env=os.environ | {"OMPI_MCA_coll_base_verbose": "20"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    # By process, because the lines of two are mixed.
    said = re.findall(r"\[\S+:(\d+)\] coll:base:comm_select: (.*)", asked.stdout + asked.stderr)
    for process in {pid for pid, _ in said}:
        lines = [line for pid, line in said if pid == process]
        enabled = re.findall(
            r"selecting +(\w+), priority +\d+, Enabled|(Checking all)", "\n".join(lines)
        )
        last = [before[0] for before, after in pairwise([*enabled, ("", "end")]) if after[1]]
        taken = [component for component in last if component]
        assert [one for one in taken if one in ("sm", "adapt")] == ["sm", "adapt"], lines
        assert taken[-1] == "tuned"


@pytest.mark.integration
def test_every_component_gives_right_sums_and_one_that_open_mpi_leaves_out_is_refused() -> None:
    backends = ["mpi:sm", "mpi:adapt", "mpi:tuned:3", "mpi:tuned:ring", "mpi:ucx"]
    settings = Settings(ranks=3, bytes=[12, 4092], repetitions=2, backends=backends)
    rows = bench([settings]).rows
    assert {(row["algorithm"], row["wrong"]) for row in rows} == {
        (name.partition(":")[2], 0) for name in backends
    }
    with pytest.raises(RankError, match="mpi:han: got ranks on one host, expected several"):
        bench([settings.model_copy(update={"backends": ["mpi:han"]})])


def test_another_mpi_than_open_mpi_is_told_from_it() -> None:
    other = SimpleNamespace(MPI_T_cvar_get_index=lambda *_: 70)
    with pytest.raises(
        RuntimeError, match="does not let coll_tuned_priority be set, as Open MPI does"
    ):
        open_mpi.exchange(other, "coll_tuned_priority", 100)  # type: ignore[arg-type]


@pytest.mark.extended
def test_all_back_ends_in_one_table() -> None:
    backends = [
        "p2p",
        "gloo",
        "horovod",
        "mpi",
        *(f"mpi:{algorithm}" for algorithm in open_mpi.ALGORITHMS[-2:]),
    ]
    measured = bench(
        [Settings(ranks=3, backends=backends, bytes=[4, 3000], repetitions=2, warmups=1)]
    )
    assert [
        (row["backend"], row["where"], row["bytes"], row["wrong"]) for row in measured.rows
    ] == [
        (name, where, nbytes, 0)
        for names, where in (
            (["p2p", "gloo"], "loopback"),
            (["horovod"], "horovodrun"),
            (["mpi"] * 3, "mpirun"),
        )
        for nbytes in (4, 3000)
        for name in names
    ]
    algorithms = [
        row["algorithm"] for row in measured.rows if row["backend"] == "mpi" and row["bytes"] == 4
    ]
    assert algorithms == ["default", "segmented_ring", "rabenseifner"]
    assert {row["device"] for row in measured.rows} == {"cpu"}
    assert len(measured.environment) == 3 * 3
    assert measured.environment[-1]["backends"] == [
        "mpi",
        "mpi:segmented_ring",
        "mpi:rabenseifner",
    ]


def test_launches_are_as_few_as_can_be() -> None:
    backends = [
        "mpi",
        "p2p",
        "nccl:Ring/LL",
        "nccl:Tree",
        "horovod",
        "nccl",
        "mpi:ring",
        "gloo",
    ]
    settings = Settings(backends=backends, where="mpirun")
    assert [
        (one.where, one.backends, one.variables()) for (one,) in group_by_launch([settings])
    ] == [
        ("mpirun", ["mpi", "p2p", "nccl", "mpi:ring", "gloo"], {}),
        ("mpirun", ["nccl:Ring/LL"], {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}),
        ("mpirun", ["nccl:Tree"], {"NCCL_ALGO": "Tree"}),
        ("horovodrun", ["horovod"], {}),
    ]
    assert group_by_launch([settings])[1][0].configurations() == [("nccl", "Ring/LL")]
    both = Settings(
        backends=["p2p", "p2p_nccl", "nccl"], algorithms=["ring", "tree"]
    ).configurations()
    assert both == [
        *(("p2p", "ring"), ("p2p", "tree"), ("p2p_nccl", "ring"), ("p2p_nccl", "tree")),
        ("nccl", "default"),
    ]


@pytest.mark.parametrize(
    ("operations", "launches"),
    [
        (
            ("NCCL", "Gloo"),
            [("loopback", ["p2p"]), ("loopback", ["nccl"]), ("loopback", ["horovod"])],
        ),
        (("Gloo",), [("loopback", ["p2p"]), ("loopback", ["nccl"]), ("horovodrun", ["horovod"])]),
    ],
)
def test_horovod_shares_gpus_where_it_is_built_with_nccl(
    operations: tuple[str, ...],
    launches: list[tuple[str, list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then its ranks meet in torch's group, because horovodrun gives none a GPU of a host of its own."""
    fake_gpus.install(tmp_path, monkeypatch)
    monkeypatch.setattr(horovod, "operations", lambda: operations)
    monkeypatch.setattr(horovod, "_on_gpus", horovod._on_gpus.__wrapped__)
    settings = Settings(backends=["p2p", "nccl", "horovod"], ranks=8, share_gpus=True)
    assert [(one.where, one.backends) for (one,) in group_by_launch([settings])] == launches


def test_back_ends_whose_ranks_share_gpus_have_a_launch_of_their_own() -> None:
    settings = Settings(
        backends=["p2p", "gloo", "p2p_nccl", "nccl"],
        where="cluster:5ms,25MB/s",
        ranks=8,
    )
    assert [one.backends for (one,) in group_by_launch([settings])] == [
        ["p2p", "gloo"],
        ["p2p_nccl", "nccl"],
    ]
    together = settings.model_copy(update={"where": "loopback"})
    assert len(group_by_launch([together])) == 1
    assert len(group_by_launch([together.model_copy(update={"share_gpus": True})])) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "GPUs for nccl on 9 ranks: got 1, expected 9, or --share-gpus"),
        (
            {"share_gpus": True},
            "ranks that share GPUs: got 9, expected at most 8 on 16 cores",
        ),
        (
            {"where": "cluster:5ms,25MB/s"},
            "ranks that share GPUs: got 9, expected at most 8 on 16 cores",
        ),
    ],
)
def test_too_few_gpus_or_cores_are_refused_before_anything_starts(
    settings: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_gpus.install(tmp_path, monkeypatch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("collectives.bench.need", lambda name: None)
    with pytest.raises(ValueError, match=message):
        bench([Settings(backends=["nccl"], ranks=9, **settings)])


@pytest.mark.parametrize("name", list(BACKENDS))
def test_what_a_back_end_lacks_is_refused_before_anything_starts(name: str) -> None:
    one = backend(name)
    for collective in set(CONTRACTS).difference(one.collectives):
        with pytest.raises(ValueError, match=f"{name} has no '{collective}', expected one of"):
            Settings(backends=[name], collective=collective)
    for dtype in set(DTYPES).difference(one.dtypes):
        with pytest.raises(ValueError, match=f"{name} has no '{dtype}', expected one of"):
            Settings(backends=[name], dtype=dtype)
    for op in set(OPS).difference(one.ops):
        with pytest.raises(ValueError, match=f"{name} has no '{op}', expected one of"):
            Settings(backends=[name], op=op)
    for collective, ops in one.ops_of.items():
        for op in set(one.ops).difference(ops):
            with pytest.raises(ValueError, match=f"{name} has no '{collective} {op}', expected"):
                Settings(backends=[name], collective=collective, op=op)


@pytest.mark.parametrize("name", list(BACKENDS))
def test_a_back_end_claims_no_collective_that_it_has_not_named(name: str) -> None:
    """A ninth collective has a contract, but no library's file names it."""
    assert backend(name).unsupported("scan", "sum", "float32") is not None
    assert set(backend(name).collectives) <= set(CONTRACTS)
    assert set(backend(name).dtypes) <= set(DTYPES)
    assert set(backend(name).ops) <= set(OPS)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "name", [name for name in BACKENDS if not isinstance(backend(name), OnGpus)]
)
def test_a_back_end_performs_no_collective_that_it_has_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It raises and calls nothing of its library, here a stand-in that has nothing."""
    library = SimpleNamespace(COMM_WORLD=SimpleNamespace(rank=0))
    monkeypatch.setattr(horovod, "started", lambda: library)
    monkeypatch.setattr(mpi, "_started", lambda: library)
    tensor = torch.arange(4.0)
    for collective in {"gossip", *CONTRACTS}.difference(backend(name).collectives):
        algorithm = "ring" if backend(name).takes_schedules else "auto"
        with pytest.raises(ValueError, match=f"'{collective}'"):
            backend(name).perform(
                Call(
                    collective,
                    tensor,
                    tensor,
                    dist.ReduceOp.SUM,
                    0,
                    algorithm=algorithm,
                )
            )
        assert torch.equal(tensor, torch.arange(4.0))


def test_an_absent_back_end_says_why_everywhere_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(programs.shutil, "which", lambda *_, **__: None)
    for name, missing, where in (
        ("horovod", programs.NO_HOROVODRUN, "horovodrun"),
        ("mpi", programs.NO_MPIRUN, "mpirun"),
    ):
        assert presence(name).absent == missing
        for act in (
            lambda name=name: need(name),
            lambda name=name: bench([Settings(backends=["p2p", name])]),
            lambda name=name: bench([Settings(backends=["p2p", name], where="cluster")]),
        ):
            with pytest.raises(ImportError, match=f"^{name} is absent: {re.escape(missing)}$"):
                act()
        with pytest.raises(ImportError, match=f"^{re.escape(missing)}$"):
            launch("backend_cases", {}, 2, where=where, timeout=PATIENCE)


@pytest.mark.parametrize("name", ["nccl", "p2p_nccl"])
def test_nccl_is_there_where_a_gpu_is_and_else_says_why(name: str) -> None:
    if torch.cuda.is_available():
        assert presence(name).version.startswith("NCCL ")
    else:
        with pytest.raises(
            ImportError,
            match=rf"^{name} is absent: torch \S+ (is built without CUDA|finds no GPU)",
        ):
            bench([Settings(backends=["p2p", name])])


def test_a_rank_without_a_gpu_of_its_own_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(
        RuntimeError,
        match="NCCL needs a GPU for each rank: this is rank 2 of its machine, which has 2",
    ):
        nccl.device()


@pytest.mark.parametrize(("visible", "taken"), [(1, 0), (8, 5)])
def test_a_rank_takes_the_only_visible_gpu_or_its_own(
    monkeypatch: pytest.MonkeyPatch, visible: int, taken: int
) -> None:
    """As where Slurm shows each task one GPU (--gpus-per-task=1), or all of its node's."""
    made_current: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert nccl.device() == torch.device("cuda", taken)
    assert made_current == [taken]


class Predicting:
    """A process group over NCCL, and its own backend, which predicts so many microseconds."""

    def __init__(self, microseconds: float, supports_time_estimate: bool = True) -> None:
        self.microseconds, self.supports_time_estimate, self.open = (
            microseconds,
            supports_time_estimate,
            False,
        )

    def _get_backend(self, device: torch.device) -> "Predicting":
        assert device.type == "cuda"
        return self

    def _start_time_estimate(self) -> None:
        self.open = True

    def _end_time_estimate(self) -> float:
        self.open = False
        return self.microseconds


def test_what_nccl_predicts_is_for_the_link_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Undo the factor by which a topology file describes the link faster.

    -1 is NCCL's word for no prediction.
    """
    (tmp_path / "topology.xml").write_text(topology_file(5e-3, 25e6, "eth0", {}))
    asked: list[bool] = []

    def predicted(one: Predicting) -> float | None:
        monkeypatch.setattr(nccl, "group", lambda: one)
        return nccl.predict(lambda: asked.append(one.open))

    assert predicted(Predicting(6287.0)) == pytest.approx(6.287e-3)
    monkeypatch.setenv("NCCL_TOPO_FILE", str(tmp_path / "topology.xml"))
    assert predicted(Predicting(6287.0)) == pytest.approx(4.8 * 6.287e-3)
    assert predicted(Predicting(-1.0)) is None
    assert asked == [True] * 3
    assert predicted(Predicting(6287.0, supports_time_estimate=False)) is None
    assert len(asked) == 3


def test_a_prediction_that_fails_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Predicting(-1.0)
    monkeypatch.setattr(nccl, "group", lambda: one)
    with pytest.raises(ZeroDivisionError):
        nccl.predict(lambda: 1 // 0)
    assert not one.open


class Library:
    """A library that torch has loaded: CUDA's runtime, and NCCL 2.31.2."""

    def __init__(self, path: str, called: list[object]) -> None:
        self.path, self.called = path, called

    def cudaSetDeviceFlags(self, flags: int) -> int:  # noqa: N802
        self.called.append((self.path, flags))
        return 0

    def ncclGetVersion(self, number: Any) -> int:  # noqa: N802
        self.called.append(self.path)
        number._obj.value = 23102
        return 0


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is called of the libraries, among those whose names begin as theirs."""
    found: list[object] = []
    names = (
        "libnccl-net.so",
        "libnccl.so.2",
        "libcudart_static.a",
        "libcudart-9335f6a2.so.12",
    )
    (tmp_path / "maps").write_text(
        "".join(f"7f0-7f1 r-xp 0 08:01 7 /a b/{name}\n" for name in names) + "7f2-7f3 rw-p 0 0 0\n"
    )
    monkeypatch.setattr(nccl, "MAPS", tmp_path / "maps")
    monkeypatch.setattr(nccl.ctypes, "CDLL", lambda path: Library(path, found))
    nccl._wait_without_spinning.cache_clear()
    return found


@pytest.mark.parametrize("shared", [True, False])
def test_a_rank_that_shares_its_gpu_waits_without_spinning(
    shared: bool, called: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA knows it before the GPU becomes the current one, which makes the context.

    And it is told once.
    """
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", called.append)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.delenv(gpus.VARIABLE, raising=False)
    if shared:
        monkeypatch.setenv(gpus.VARIABLE, "1")
    for _ in range(2):
        nccl.device()
    assert called == [("/a b/libcudart-9335f6a2.so.12", 4), 0, 0][not shared :]


def test_the_version_is_that_of_the_nccl_that_is_loaded(called: list[object]) -> None:
    assert nccl.version() == "2.31.2"
    assert called == ["/a b/libnccl.so.2"]


def test_a_loaded_library_is_found() -> None:
    library = nccl._loaded("libtorch_cpu")
    assert library is not None
    assert Path(library._name).parent == Path(torch.__file__).parent / "lib"
    assert nccl._loaded("libnone") is None


@pytest.mark.integration
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["nccl", "p2p_nccl"])
def test_nccl_on_one_gpu(name: str) -> None:
    assert len(checks(name, 1)) == len(CONTRACTS)


@pytest.mark.integration
@pytest.mark.multi_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", ["nccl", "p2p_nccl"])
def test_nccl_on_all_gpus(name: str) -> None:
    assert len(checks(name, torch.cuda.device_count())) == len(CONTRACTS)


@pytest.mark.integration
@pytest.mark.multi_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_rows_of_nccl_s_algorithms() -> None:
    backends = ["p2p_nccl", "nccl:Ring/Simple", "nccl:Tree/Simple"]
    measured = bench(
        [
            Settings(
                ranks=2,
                backends=backends,
                algorithms=["ring", "two_tree"],
                bytes=[4, 1 << 20],
            )
        ]
    )
    assert [row["wrong"] for row in measured.rows] == [0] * 8
    assert {row["device"] for row in measured.rows} == {"cuda"}
