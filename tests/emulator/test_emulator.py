"""Emulated hosts have their own names, addresses and processes, reach each other, and leave nothing behind."""

import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectives.bench import Settings, bench
from collectives.bench.settings import group_by_launch
from collectives.emulator import Cluster, address, allowed, cluster, name
from collectives.launch import RankError, forks, launch, need_where
from collectives.launch.cluster import launch_on
from command import PIPES, finished, having, started
from places import PATIENCE, comes_true

pytestmark = pytest.mark.integration

NETWORK = {"latency": "1ms", "rate": "100MB/s"}
WHERE = "cluster:1ms,100MB/s"
COMMAND = [sys.executable, "-m", "collectives", "cluster"]


@pytest.fixture(scope="module")
def hosts(allowed: None) -> Iterator[Cluster]:
    with cluster(4, **NETWORK) as made:
        yield made


def said(hosts: Cluster, host: int, *command: str) -> str:
    with hosts.popen(host, list(command), stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    return str(out.decode())


def is_gone(pid: int) -> bool:
    """Soon; a process that nobody has waited for yet is gone, too."""

    def now() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    return comes_true(now)


def networks() -> set[str]:
    """Every network namespace that some process is in."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(str(link.readlink()))
        except OSError:
            continue  # it has just ended
    return found


NAMES = """
import json, socket
own = socket.gethostname()
print(json.dumps([own, socket.gethostbyname(own), [socket.gethostbyname(f"host{i}") for i in range(4)]]))
assert len(socket.getaddrinfo("host3", 1, type=socket.SOCK_STREAM)) == 1
for mapped in "", "::ffff:":  # as a server sees its clients that takes IPv6, too
    print(socket.getnameinfo((f"{mapped}10.77.0.4", 1), socket.NI_NAMEREQD)[0])
"""


def test_every_host_has_a_name_that_leads_to_its_own_address(hosts: Cluster) -> None:
    for host in range(4):
        everyone = [address(each) for each in range(4)]
        forward, *back = said(hosts, host, sys.executable, "-c", NAMES).splitlines()
        assert json.loads(forward) == [name(host), address(host), everyone]
        assert back == ["host3", "host3-ipv6"]
    assert socket.gethostname() != name(3)
    assert "10.77.0." not in Path("/etc/hosts").read_text()


def test_a_host_sees_only_its_own_network_processes_and_memory(hosts: Cluster) -> None:
    lines = said(hosts, 1, "cat", "/proc/net/dev").splitlines()[2:]
    assert sorted(line.split(":")[0].strip() for line in lines) == ["eth0", "lo"]
    assert len([entry for entry in said(hosts, 1, "ls", "/proc").split() if entry.isdecimal()]) == 2
    said(hosts, 1, "touch", "/dev/shm/mine")
    assert said(hosts, 1, "ls", "/dev/shm") == "mine\n"
    assert said(hosts, 2, "ls", "/dev/shm") == ""
    assert not Path("/dev/shm/mine").exists()
    assert said(hosts, 2, "pwd") == f"{Path.cwd()}\n"


# Every rank sends a different number of different bytes to each other one, and says what it got.
EXCHANGE = """
import os, random, socket, threading
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
data = lambda a, b: random.Random(100 * a + b).randbytes(1 + 70_001 * (a + 2 * b))
server = socket.create_server(("", 4000 + rank), backlog=size)
def send(to):
    while True:
        try:
            with socket.create_connection((f"host{to * 4 // size}", 4000 + to), 20) as out:
                return out.sendall(bytes([rank]) + data(rank, to))
        except ConnectionRefusedError:
            pass
for to in range(size):
    threading.Thread(target=send, args=(to,)).start()
for _ in range(size):
    got = server.accept()[0].makefile("rb").read()
    assert got[1:] == data(got[0], rank), f"from {got[0]} to {rank}"
"""


@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_what_is_sent_arrives(hosts: Cluster, ranks_per_host: int) -> None:
    assert (
        hosts.run([sys.executable, "-c", EXCHANGE], ranks_per_host=ranks_per_host, timeout=PATIENCE)
        == 0
    )


def test_a_host_holds_no_file_of_its_launcher_whatever_the_number(
    allowed: None, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(1 << 17, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        with (tmp_path / "mine").open("w") as file:
            large = fcntl.fcntl(file, fcntl.F_DUPFD, most - 1)
            os.set_inheritable(large, True)
            with cluster(1, **NETWORK) as hosts:
                held = [
                    str(each.readlink()) for each in Path(f"/proc/{hosts.pids[0]}/fd").iterdir()
                ]
            os.close(large)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert file.name not in held


def test_the_first_failure_ends_the_others(hosts: Cluster) -> None:
    assert hosts.run(["sh", "-c", 'test "$RANK" != 2 || exit 3; sleep 1000'], timeout=PATIENCE) == 3
    assert (
        hosts.run(["sh", "-c", 'test "$RANK" != 2 || kill -9 $$; sleep 1000'], timeout=PATIENCE)
        == 128 + signal.SIGKILL
    )
    assert hosts.run(["sh", "-c", "sleep 1000 & exit 0"], timeout=PATIENCE) == 0
    with pytest.raises(TimeoutError, match=r"sleep timed out after 0\.2 s"):
        hosts.run(["sleep", "1000"], timeout=0.2)
    # A killed process is there until the system has cleared it away.
    assert comes_true(
        lambda: "sleep" not in said(hosts, 1, "sh", "-c", "cat /proc/[0-9]*/comm; true")
    )


TALK = """
import socket, sys
socket.create_connection((sys.argv[1], 5000), 1.0).close()
"""
LISTEN = "import socket; s = socket.create_server(('', 5000)); print(flush=True); [s.accept() for _ in range(9)]"


def reaches(hosts: Cluster, source: int, target: str) -> bool:
    command = [sys.executable, "-S", "-c", TALK, target]
    return hosts.popen(source, command, stderr=subprocess.DEVNULL).wait(timeout=PATIENCE) == 0


def test_a_cut_host_is_out_of_reach_until_it_is_healed(hosts: Cluster) -> None:
    with hosts.popen(3, [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        hosts.set(3, rate="50MB/s", latency="2ms")
        assert reaches(hosts, 0, "host3")
        hosts.cut(3)
        assert not reaches(hosts, 0, "host3")
        hosts.heal(3)
        assert reaches(hosts, 0, "host3")
        hosts.cut(0, 3)
        assert not reaches(hosts, 0, "host3")
        assert reaches(hosts, 1, "host3")
        hosts.heal(0, 3)
        assert reaches(hosts, 0, "host3")
        # Another one has the same addresses.
        with cluster(4, racks=2, uplink="10MB/s", **NETWORK) as other:
            assert not reaches(other, 0, "host3")
            other.cut(3)
            assert reaches(hosts, 0, "host3")
        os.killpg(server.pid, signal.SIGKILL)


LOST = """
import os
from datetime import timedelta
import torch
from torch import distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=4))
print("ready", flush=True)
try:
    while True:
        dist.all_reduce(torch.ones(100_000))
except RuntimeError as error:
    print(type(error).__name__, flush=True)
    os._exit(0)
"""


def test_ranks_that_lose_a_host_end_with_an_error_and_new_ones_work(hosts: Cluster) -> None:
    ranks = [
        hosts.popen(
            rank,
            [sys.executable, "-c", LOST],
            environment=hosts.variables(rank),
            stdout=subprocess.PIPE,
        )
        for rank in range(4)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"ready\n"
    hosts.cut(2)
    for rank in ranks:
        out, _ = rank.communicate(timeout=PATIENCE)
        assert out.endswith(b"Error\n")
    hosts.heal(2)
    assert hosts.run([sys.executable, "-c", EXCHANGE], timeout=PATIENCE) == 0


def test_ranks_live_there_and_a_failing_one_is_named(allowed: None) -> None:
    job = {"do": "environment", "name": "NCCL_ALGO"}
    events = launch(
        "unwell", job, 4, where=f"{WHERE},2", timeout=PATIENCE, environment={"NCCL_ALGO": "Tree"}
    )
    expected = [["Tree", "0"], ["Tree", "1"]] * 2
    assert [event["everyone"] for event in events if "everyone" in event] == [expected]
    with pytest.raises(RankError, match="rank 1 of 2 ended with exit code 1") as caught:
        launch("unwell", {"do": "raise", "rank": 1}, 2, where=WHERE, timeout=PATIENCE)
    assert "ValueError: a bug on purpose" in str(caught.value)


COUNTED = """
import os
from torch import distributed as dist
with open(os.environ["MARK"] + "/imported", "a") as file:
    print(os.getpid(), file=file)
def run(settings, report):
    everyone = [None] * dist.get_world_size()
    namespaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("net", "uts", "pid", "mnt")]
    dist.all_gather_object(everyone, (os.environ["RANK"], os.getcwd(), *namespaces))
    report({"everyone": everyone})
"""


def test_ranks_are_forks_of_one_process_and_gone_with_their_launch(
    hosts: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "counted.py").write_text(COUNTED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("MARK", str(tmp_path))
    seen: list[dict[str, Any]] = []
    for nth in (1, 2):
        events = launch_on(hosts, "counted", {}, 2, timeout=PATIENCE, on_event=seen.append)
        servers = {each.process.pid for each in forks._servers.values()}
        assert set(having("MARK", str(tmp_path))) <= servers
        assert events == seen[-1:]
        assert len((tmp_path / "imported").read_text().split()) == nth
    ranks, directories, *namespaces = zip(*seen[-1]["everyone"], strict=True)
    assert ranks == tuple("01234567")
    assert set(directories) == {str(Path.cwd())}
    for kind in namespaces:
        assert kind[::2] == kind[1::2]
        assert len(set(kind)) == 4


@pytest.mark.extended
def test_a_stopped_rank_is_named_when_time_is_up(hosts: Cluster) -> None:
    with pytest.raises(
        RankError,
        match=r"^rank 2 of 4 is stopped \(SIGSTOP\): timed out after 20 s; its last lines:",
    ):
        launch_on(hosts, "unwell", {"do": "stop", "rank": 2}, timeout=20, on_event=lambda _: None)


def test_a_host_that_cannot_be_entered_is_named(
    hosts: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    monkeypatch.setattr(hosts, "pids", [*hosts.pids[:3], gone.pid])
    with pytest.raises(
        RankError, match=r"^rank 3 of 4 ended with exit code 1; .*\n.*No such file or directory"
    ):
        launch_on(hosts, "unwell", {"do": "nothing"}, timeout=PATIENCE, on_event=lambda _: None)


def test_collectives_are_right_there(allowed: None) -> None:
    once = {"bytes": [4, 1 << 18], "repetitions": 1, "warmups": 0}
    wanted = Settings(
        ranks=3, where=WHERE, algorithms=["ring"], backends=["p2p", "gloo", "horovod"], **once
    )
    assert [one.backends for (one,) in group_by_launch([wanted])] == [["p2p", "gloo"], ["horovod"]]
    rows = bench([wanted]).rows
    assert [(row["backend"], row["where"], row["transport"], row["wrong"]) for row in rows] == [
        *[("p2p", WHERE, "tcp", 0), ("gloo", WHERE, None, 0)] * 2,
        *[("horovod", WHERE, None, 0)] * 2,
    ]


@pytest.mark.extended
def test_mpi_is_right_there_among_the_others(allowed: None) -> None:
    backends = ["p2p", "gloo", "mpi", "mpi:ring", "mpi:recursive_doubling"]
    sizes = {"bytes": [0, 4, 4004], "repetitions": 2, "warmups": 1}
    wanted = Settings(
        ranks=3, where=WHERE, algorithms=["ring"], backends=[*backends, "horovod"], **sizes
    )
    (together,), (horovod,) = group_by_launch([wanted])
    assert (together.where, together.backends, horovod.backends) == (WHERE, backends, ["horovod"])
    measured = bench([together])
    named = [tuple(each.partition(":")[::2]) for each in backends]
    assert [
        (row["backend"], row["where"], row["bytes"], row["wrong"]) for row in measured.rows
    ] == [(name, WHERE, nbytes, 0) for nbytes in sizes["bytes"] for name, _ in named]
    assert [row["algorithm"] for row in measured.rows[2:5]] == [
        "default",
        "ring",
        "recursive_doubling",
    ]
    assert [record["where"] for record in measured.environment] == [WHERE] * 3


@pytest.mark.extended
@pytest.mark.parametrize(
    ("do", "how"),
    [("raise", "ended with exit code 1; its last lines:"), ("killed", "was killed by SIGKILL;")],
)
def test_a_failing_rank_of_mpirun_s_is_named(allowed: None, do: str, how: str) -> None:
    with pytest.raises(RankError, match=rf"^rank 1 of 2 {how}") as caught:
        launch(
            "unwell",
            {"do": do, "rank": 1, "later": 10},
            2,
            where=f"{WHERE},1,mpirun",
            timeout=PATIENCE,
        )
    assert ("ValueError: a bug on purpose" in str(caught.value)) == (do == "raise")


def test_mpirun_s_ranks_know_their_place(allowed: None) -> None:
    job = {"do": "environment", "name": "NCCL_ALGO"}
    events = launch(
        "unwell",
        job,
        4,
        where=f"{WHERE},2,mpirun",
        timeout=PATIENCE,
        environment={"NCCL_ALGO": "Tree"},
    )
    expected = [["Tree", "0"], ["Tree", "1"]] * 2
    assert [event["everyone"] for event in events if "everyone" in event] == [expected]


BY_MPIRUN = """
import sys
from collectives.launch import launch
launch("unwell", {"do": "sleep"}, 2, where=sys.argv[1], timeout=600, on_event=lambda event: print(event, flush=True))
"""


def test_nothing_is_left_of_mpirun_when_its_launcher_is_killed(
    allowed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("MARK", str(tmp_path))
    command = [sys.executable, "-c", BY_MPIRUN, f"{WHERE},1,mpirun"]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as launcher:
        assert launcher.stdout is not None
        assert "pids" in launcher.stdout.readline().decode()
        assert "child" in launcher.stdout.readline().decode()
        marked = having("MARK", str(tmp_path))
        assert len(marked) > 8  # on each host its first process, a daemon, a rank and its child
        ours = {Path(f"/proc/{pid}/ns/net").readlink() for pid in marked} - {
            Path("/proc/self/ns/net").readlink()
        }
        assert len(ours) == 2
        launcher.kill()
        assert all(is_gone(pid) for pid in marked)
        assert not ours & networks()
        assert list(tmp_path.iterdir()) == []
        assert not list(Path("/dev/shm").glob("ompi.*"))


PARENT = """
import sys, time
from collectives.emulator import cluster
with cluster(3, "1ms", "100MB/s") as hosts:
    sleepers = [hosts.popen(host, ["sh", "-c", "sleep 1000 & exec sleep 1000"]) for host in range(3)]
    time.sleep(0.5)
    print(*hosts.pids, *(each.pid for each in sleepers), flush=True)
    time.sleep(1000)
"""


@pytest.mark.alone
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_killed_launcher(allowed: None, how: signal.Signals) -> None:
    allowed_before = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text()
    mounts, interfaces = Path("/proc/self/mounts").read_text(), os.listdir("/sys/class/net")  # noqa: PTH208
    with started(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as launcher:
        assert launcher.stdout is not None
        pids = [int(pid) for pid in launcher.stdout.readline().split()]
        assert len(pids) == 6
        ours = {str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in pids[:3]}
        assert len(ours) == 3
        assert ours <= networks()
        launcher.send_signal(how)
        assert launcher.wait(timeout=PATIENCE) != 0
        assert all(is_gone(pid) for pid in pids)
        assert not ours & networks()
    assert Path("/proc/self/mounts").read_text() == mounts
    assert os.listdir("/sys/class/net") == interfaces  # noqa: PTH208
    assert Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text() == allowed_before


MANY = """
from collectives.emulator import cluster
with cluster(100): pass
"""


@pytest.mark.alone
def test_a_launcher_that_is_killed_while_it_starts_changes_nothing_for_the_system(
    allowed: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MARK", str(tmp_path))
    setting = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    before, known = setting.read_text(), networks()
    with started([sys.executable, "-c", MANY], stderr=subprocess.PIPE) as launcher:
        while len(networks() - known) < 3:
            time.sleep(0.01)
        launcher.kill()
        assert launcher.communicate()[1] == b""
        assert comes_true(lambda: not having("MARK", str(tmp_path)))
    after = setting.read_text()
    if after != before:
        setting.write_text(before)
    assert after == before


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [(signal.SIGINT, 130, "collectives: interrupted\n"), (signal.SIGTERM, 143, None)],
)
def test_the_command_ends_at_once_when_it_is_asked_to(
    allowed: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    how: signal.Signals,
    code: int,
    told: str | None,
) -> None:
    monkeypatch.setenv("MARK", str(tmp_path))
    command = [*COMMAND, "--hosts", "2", "--", "sh", "-c", "echo here; sleep 1000"]
    with started(command, **PIPES) as asked:
        assert asked.stdout.readline() == asked.stdout.readline() == "here\n"
        os.killpg(asked.pid, how)  # as a terminal does
        _, said = asked.communicate(timeout=PATIENCE)
        assert asked.returncode == code
        assert said == told if told else len(said.splitlines()) <= 1
        assert having("MARK", str(tmp_path)) == []


def test_hosts_end_with_the_fabric_and_the_launcher_is_told(allowed: None) -> None:
    with cluster(2, **NETWORK) as hosts:
        (fabric,) = {
            int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            for pid in hosts.pids
        }
        os.kill(fabric, signal.SIGKILL)
        assert all(is_gone(pid) for pid in hosts.pids)
        with pytest.raises((RuntimeError, OSError)):
            hosts.cut(1)


# What decides how fast a connection to the other host sends.
CONGESTION = """
import os, socket
with socket.socket() as to:
    to.setblocking(False)
    to.connect_ex(("10.77.0.2" if os.environ["RANK"] == "0" else "10.77.0.1", 9))
    name = to.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).strip(bytes(1)).decode()
    print(f"{name}\\n", end="")  # in one piece: two hosts write to one pipe
"""


# Without the rights of root: in a user namespace of somebody else's making, and in one that the
# cluster makes itself.
@pytest.mark.parametrize(
    "without",
    [
        ["unshare", "--user", "--map-root-user"],
        ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"],
    ],
)
def test_user_namespaces_do_without_root(allowed: None, without: list[str]) -> None:
    if subprocess.run(
        ["unshare", "--user", "true"], stderr=subprocess.DEVNULL, check=False
    ).returncode:
        pytest.skip("user namespaces are not allowed here")
    script = f"hostname; getent hosts $(hostname); {sys.executable} -c '{CONGESTION}'"
    command = [*COMMAND, "--hosts", "2", "--", "sh", "-c", script]
    done = finished([*without, *command])
    assert done.returncode == 0, done.stderr
    expected = ["10.77.0.1", "10.77.0.2", "cubic", "cubic", "host0", "host0", "host1", "host1"]
    assert sorted(done.stdout.split()) == expected


AVERAGE = """
import torch
from torch import distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


def test_ranks_that_meet_as_under_torchrun_print_nothing_but_their_own(
    hosts: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "average.py").write_text(AVERAGE)
    command = f"{sys.executable} {tmp_path}/average.py >{tmp_path}/printed.$RANK 2>&1"
    assert hosts.run(["sh", "-c", command], timeout=PATIENCE) == 0
    assert [(tmp_path / f"printed.{rank}").read_text() for rank in range(4)] == [""] * 4


@pytest.mark.alone
@pytest.mark.extended
def test_the_command_checks_itself(allowed: None) -> None:
    command = [*COMMAND, "--hosts", "3", "--rate", "5MB/s", "--check", "--json"]
    done = finished(command, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["what"] for row in rows][:3] == ["round trip", "one way", "all to one"]
    assert all(row["measured"] > 0 and row["hosts"] == 3 for row in rows)
    assert rows[0]["set"] == 0.01


def test_where_hosts_cannot_be_made_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert allowed() == "a cluster in slow motion is made of namespaces, which only Linux has"


BENCH = ["bench", "--where", "cluster", "--ranks", "2", "--bytes", "4"]


def test_without_nsenter_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from collectives.cli import main

    monkeypatch.setenv("PATH", "/nowhere")
    for words in (BENCH, ["cluster", "--", "true"]):
        assert main(words) == 1
        assert (
            capsys.readouterr().err == "collectives: nsenter is not installed: install util-linux\n"
        )


def test_without_a_device_there_is_one_line(allowed: None) -> None:
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    hidden = [
        "unshare",
        *user,
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs none /dev/net && exec "$@"',
        "sh",
    ]
    command = [*hidden, sys.executable, "-m", "collectives", *BENCH]
    done = finished(command)
    (line,) = done.stderr.splitlines()
    assert line.startswith("collectives: cannot open /dev/net/tun (No such file or directory): ")
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hosts", "0", "--", "true"], "invalid number of hosts: got 0, expected 1 to 254"),
        (["--hosts", "255", "--", "true"], "invalid number of hosts: got 255, expected 1 to 254"),
        (
            ["--latency", "soon", "--", "true"],
            "invalid time 'soon'; expected for example 500ns, 5us, 5ms or 1.5s",
        ),
        (
            ["--hosts", "100000", "--", "true"],
            "invalid number of hosts: got 100000, expected 1 to 254",
        ),
        (
            ["--rate", "0MB/s", "--", "true"],
            "rate out of range: got '0MB/s', expected 1B/s to 1TB/s",
        ),
        (
            ["--latency", "11s", "--", "true"],
            "latency out of range: got '11s', expected at most 10s",
        ),
        (["--racks", "2", "--", "true"], "racks and the rate of their uplink go together"),
        (
            ["--racks", "9", "--uplink", "1MB/s", "--", "true"],
            "invalid number of racks: got 9, expected 1 to 8",
        ),
        (
            ["--ranks-per-host", "0", "--", "true"],
            "ranks per host out of range: got 0, expected 1 to 128 on 8 hosts",
        ),
        (
            ["--ranks-per-host", "129", "--", "true"],
            "ranks per host out of range: got 129, expected 1 to 128",
        ),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from collectives.cli import main

    assert main(["cluster", *words]) == 2
    assert capsys.readouterr().err.startswith(f"collectives: {said}")


def test_there_is_no_such_host(hosts: Cluster) -> None:
    with pytest.raises(ValueError, match="invalid host: got 4, expected 0 to 3"):
        hosts.cut(4)
    with pytest.raises(ValueError, match="invalid link: got host 1 twice, expected two hosts"):
        hosts.cut(1, 1)
    with pytest.raises(ValueError, match=r"invalid rate 'fast'; expected for example 25MB/s"):
        hosts.set(1, rate="fast")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("cluster:soon", "unknown machine 'soon'"),
        ("cluster:5ms,fast", "invalid rate 'fast'"),
        ("cluster:5ms,0MB/s", "rate out of range: got '0MB/s', expected 1B/s to 1TB/s"),
        ("cluster:5ms,1001GB/s", "rate out of range: got '1001GB/s', expected 1B/s to 1TB/s"),
        ("cluster:10001ms,25MB/s", "latency out of range: got '10001ms', expected at most 10s"),
        ("cluster:nan,25MB/s", "unknown machine 'nan'"),
        ("cluster:5ms,-1MB/s", "invalid rate '-1MB/s'"),
        (
            "cluster:5ms,25MB/s,3",
            "cannot divide the ranks among hosts: got 4, expected a multiple of 3",
        ),
        ("cluster:5ms,25MB/s,1,1", "invalid network: got '5ms,25MB/s,1,1', expected LATENCY,RATE"),
        ("cluster:5ms,mpirun,1", "invalid rate 'mpirun'"),
        ("cluster:mpirun,mpirun", "unknown machine 'mpirun'"),
        (
            "cluster:5ms,25MB/s,x,mpirun",
            "invalid network: got '5ms,25MB/s,x,mpirun', expected LATENCY,RATE",
        ),
        ("loopback:5ms", "unknown where 'loopback:5ms'; known are loopback"),
    ],
)
def test_a_network_that_cannot_be_is_refused(where: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(ranks=4, where=where)


def test_a_cluster_has_room_for_so_many() -> None:
    assert need_where("cluster:10s,1B/s", 254) is None
    with pytest.raises(ValueError, match="invalid number of hosts: got 255, expected 1 to 254"):
        need_where("cluster", 255)
    with pytest.raises(
        ValueError, match="ranks per host out of range: got 1025, expected 1 to 1024 on 1 hosts"
    ):
        need_where("cluster:5ms,25MB/s,1025", 1025)
