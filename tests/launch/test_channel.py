"""What a process without the secret can do to a launcher's channel, rule by rule: nothing."""

import argparse
import importlib.util
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing.connection import CHALLENGE, WELCOME, Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from collectives.launch import address, channel, programs, request, secret, torchrun
from collectives.launch.address import LOOPBACK
from collectives.launch.channel import Channel, ChannelError, Listener, connect
from collectives.launch.request import Request
from collectives.launch.torchrun import Hub
from places import PATIENCE, comes_true, free_port

pytestmark = pytest.mark.integration  # connections, and seconds of waiting for strangers


SECRET, OTHER = "s" * 32, "o" * 32
JOB = {"task": "bench", "settings": {"x": "ü\n"}}
RANK, DRIVER = {"role": "rank", "rank": 3}, {"role": "driver"}


class Launcher:
    """Gives everyone with the secret the job, and keeps what they say."""

    def __init__(self) -> None:
        self.heard: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self.listener = Listener(LOOPBACK, SECRET, self.serve)
        self.address = self.listener.address

    def serve(self, rank: Channel, hello: dict[str, Any]) -> None:
        rank.send(JOB)
        while (message := rank.receive()) is not None:
            self.heard.put((hello["rank"], message))

    def works(self) -> bool:
        """Whether a rank with the secret gets its job and is heard, and nobody else has been."""
        with connected(self) as rank:
            rank.send({"event": {"row": 1}})
            return rank.receive() == JOB and self.heard.get(timeout=PATIENCE) == (
                3,
                {"event": {"row": 1}},
            )


def connected(launcher: Launcher) -> closing[Channel]:
    return closing(connect(launcher.address, SECRET, RANK, PATIENCE))


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.listener.close()
    assert made.heard.empty()


def is_closed(stranger: socket.socket) -> bool:
    """Return True if the other end closes soon, whatever it has said before."""
    stranger.settimeout(PATIENCE)
    try:
        while stranger.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_who_has_the_secret_gets_the_job_and_is_heard(launcher: Launcher) -> None:
    assert launcher.works()
    assert launcher.works()


def test_another_secret_gets_nothing(launcher: Launcher) -> None:
    with pytest.raises(ChannelError, match="no launcher with our secret at 127"):
        connect(launcher.address, OTHER, RANK, 0)
    assert launcher.works()


@pytest.mark.parametrize(
    "said",
    [
        b"\0\0\0\0",
        b"\0\0\0\4rank",
        b"\xff" * 300,
        b"\0\0\1\1" + bytes(257),
        b"x" * 10_000_000,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["nothing", "no digest", "8 EiB", "too long", "10 MB", "HTTP"],
)
def test_garbage_is_closed_at_once(launcher: Launcher, said: bytes) -> None:
    with socket.create_connection(launcher.address) as stranger:
        try:
            stranger.sendall(said)
        except OSError:
            return  # closed before all of it was sent
        assert is_closed(stranger)
    assert launcher.works()


@pytest.mark.parametrize("is_slow", [False, True], ids=["idle", "a byte at a time"])
def test_a_stranger_has_a_time_limit(
    launcher: Launcher, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "PENDING_SECONDS", 0.5)
    with socket.create_connection(launcher.address) as stranger:
        for _ in range(40 if is_slow else 0):
            try:
                stranger.sendall(b"\0")
            except OSError:
                return
            time.sleep(0.05)
        assert is_closed(stranger)
    assert launcher.works()


def test_of_too_many_strangers_some_are_closed(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_PENDING", 4)
    strangers = [socket.create_connection(launcher.address) for _ in range(8)]
    assert launcher.works()
    for stranger in strangers:
        stranger.recv(100)  # the challenge, or nothing if it was closed before
        stranger.setblocking(False)
    assert sum(not waits(stranger) for stranger in strangers) >= 4
    for stranger in strangers:
        stranger.close()


def test_a_flood_of_strangers_ends_few_handshakes(launcher: Launcher) -> None:
    with ExitStack() as stack:
        first, flood = (
            [stack.enter_context(socket.create_connection(launcher.address)) for _ in range(many)]
            for many in (60, channel.MAX_PENDING)
        )
        for each in first + flood[:-1]:
            with suppress(ConnectionError):
                each.recv(100)  # it has been accepted
        assert launcher.works()
        for each in first:
            each.setblocking(False)
        assert sum(map(waits, first)) > 0


def waits(stranger: socket.socket) -> bool:
    """Whether the launcher still waits for what this one has to say."""
    try:
        return bool(stranger.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_a_recorded_connection_cannot_be_played_again(launcher: Launcher) -> None:
    with relay(launcher.address, SimpleQueue()) as (address, said):
        with pytest.raises(ChannelError):  # the relay's address is not the launcher's
            connect(address, SECRET, RANK, 0)
        recorded = said.get(timeout=PATIENCE)
    with socket.create_connection(launcher.address) as stranger:
        stranger.sendall(recorded)
        assert is_closed(stranger)
    assert launcher.works()


@contextmanager
def relay(
    to: tuple[str, int], said: SimpleQueue[bytes]
) -> Iterator[tuple[tuple[str, int], SimpleQueue[bytes]]]:
    """Passes on what both say; what the first to connect says is also kept."""
    listener = socket.create_server((LOOPBACK, 0))

    def run() -> None:
        come, _ = listener.accept()
        with come, socket.create_connection(to) as there:
            come.sendall(there.recv(1 << 16))
            said.put(answer := come.recv(1 << 16))
            there.sendall(answer)
            come.sendall(there.recv(1 << 16))

    thread = threading.Thread(target=run)
    thread.start()
    yield listener.getsockname()[:2], said
    thread.join()
    listener.close()


def test_only_one_address_is_listened_on(launcher: Launcher) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", launcher.address[1]))


def test_a_launcher_listens_where_its_ranks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"lo0": "127.0.0.1", "eth0": "192.0.2.7"}
    addresses = {
        name: [argparse.Namespace(family=socket.AF_INET, address=found[name])] for name in found
    }
    monkeypatch.setattr(address.psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(
        socket, "create_server", lambda at: closing_nothing(at[0] in found.values())
    )
    monkeypatch.setattr(address, "_outgoing", lambda: "192.0.2.7")
    for named, interface, is_local, expected in (
        ("192.0.2.9", "", True, "127.0.0.1"),
        ("192.0.2.7", "eth0,eth1", True, "192.0.2.7"),
        ("192.0.2.9", "lo0", False, "127.0.0.1"),
        ("127.0.1.1", "", False, "192.0.2.7"),
        ("192.0.2.9", "ib0", False, "192.0.2.7"),
    ):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
        monkeypatch.setattr(address, "_named", lambda named=named: named)
        assert address.reachable(is_local) == expected
    monkeypatch.setattr(address, "_outgoing", lambda: "192.0.2.8")
    assert address.reachable(is_local=False) == "127.0.0.1"


def closing_nothing(is_there: bool) -> Any:
    """A listener, if the address is this machine's."""
    if not is_there:
        raise OSError("cannot assign requested address")
    return argparse.Namespace(close=lambda: None)


def test_who_pretends_to_be_the_launcher_is_not_believed() -> None:
    with socket.create_server((LOOPBACK, 0)) as false:

        def lie() -> None:
            with Connection(false.accept()[0].detach()) as rank:
                for said in (CHALLENGE + bytes(20), WELCOME):
                    rank.send_bytes(said)
                    rank.recv_bytes()
                rank.send_bytes(bytes(16))
                rank.recv_bytes()

        thread = threading.Thread(target=lie)
        thread.start()
        with pytest.raises(ChannelError, match="the other end does not have our secret"):
            connect(false.getsockname()[:2], SECRET, RANK, 0)
        thread.join()


def test_a_message_has_a_limit(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(launcher) as rank:
        assert rank.receive() == JOB
        rank._connection.send_bytes(b"[" + bytes(1000))  # type: ignore[attr-defined]
        monkeypatch.setattr(channel, "MAX_BYTES", 1000)
        with pytest.raises(
            ValueError, match="message too long: got 1011 bytes, expected at most 1000"
        ):
            rank.send({"event": "x" * 998})
        assert rank.receive() is None


def test_no_message_is_unpickled(launcher: Launcher, tmp_path: Path) -> None:
    with connected(launcher) as rank:
        assert rank.receive() == JOB
        rank._connection.send(Evil(tmp_path / "executed"))
        assert rank.receive() is None
    assert launcher.works()
    assert not (tmp_path / "executed").exists()


class Evil:
    """Touches a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_the_end_of_the_launcher_ends_the_connection(launcher: Launcher) -> None:
    with connected(launcher) as rank:
        assert rank.receive() == JOB
        launcher.listener.close()
        assert rank.receive() is None


class Store(dict[str, bytes]):
    """A store of torch's, where a stranger writes before everyone who reads."""

    def __init__(self, *lies: str) -> None:
        self.lies = list(lies)

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return bool(self.lies) or all(key in self for key in keys)

    def get(self, key: str) -> bytes:
        return self.lies.pop(0).encode() if self.lies else self[key]


def await_processes(hub: Hub, *ranks: int) -> None:
    """Wait until these have joined: a hub may be a moment behind the other ends of its connections."""
    assert comes_true(lambda: set(ranks) <= set(hub.processes))


def test_a_process_of_torchrun_finds_rank_0_whatever_a_stranger_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "PENDING_SECONDS", 0.5)
    hub = Hub()
    with (
        socket.create_server((LOOPBACK, 0)) as idle,
        closing(Listener(LOOPBACK, SECRET, hub.serve)) as ours,
    ):
        store = Store(
            "",
            "nonsense",
            "127.0.0.1 99999999",
            "127.0.0.1 -1",
            f"127.0.0.1 {idle.getsockname()[1]}",
        )
        store.set(torchrun.KEY, "{} {}".format(*ours.address))
        with closing(torchrun._joined(store, SECRET, 1)):
            assert not store.lies
            await_processes(hub, 1)


def test_nodes_with_different_secrets_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_JOIN_SECONDS", "1")
    hub, store = Hub(), Store()
    with closing(Listener(LOOPBACK, SECRET, hub.serve)) as ours:
        store.set(torchrun.KEY, "{} {}".format(*ours.address))
        with pytest.raises(
            TimeoutError,
            match="rank 0's process has not shown our secret within 1 s; is COLLECTIVES_SEC",
        ):
            torchrun._joined(store, OTHER, 1)
        with pytest.raises(
            TimeoutError,
            match="torchrun's processes 0, 1 have not joined within 1 s; is COLLECTIVES_SEC",
        ):
            torchrun._gather(store, hub, 2, "x")


@pytest.mark.parametrize("wrong", ["", "0", "-1", "3601", "9" * 5000, "5m", "1.5", "٣"])
def test_a_time_to_meet_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv("COLLECTIVES_JOIN_SECONDS", wrong)
    with pytest.raises(
        ValueError, match=r"invalid COLLECTIVES_JOIN_SECONDS: got .*, expected whole seconds, 1 to"
    ):
        torchrun._gather(Store(), Hub(), 2, "x")


def test_an_order_goes_to_the_ranks_that_it_is_for_and_the_launch_hears_of_a_process_that_has_ended() -> (
    None
):
    hub = Hub()
    with closing(Listener(LOOPBACK, SECRET, hub.serve)) as ours:
        processes = [
            connect(ours.address, SECRET, {"role": "process", "rank": rank}, PATIENCE)
            for rank in range(3)
        ]
        await_processes(hub, 0, 1, 2)
        with closing(connect(ours.address, SECRET, DRIVER, PATIENCE)) as driver:
            driver.send({"ranks": 2})
            assert [process.receive() for process in processes[:2]] == [{"ranks": 2}] * 2
            processes[1].close()
            assert driver.receive() == {"gone": 1}
        with closing(connect(ours.address, SECRET, DRIVER, PATIENCE)) as driver:
            driver.send({"ranks": 3})
            assert driver.receive() == {"gone": 1}
            assert processes[2].receive() == {"ranks": 3}
        for process in processes:
            process.close()


def test_without_a_secret_nothing_is_ordered_beyond_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (secret.VARIABLE, secret.FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "node1")
    with pytest.raises(
        ValueError,
        match="no secret: got neither COLLECTIVES_SECRET nor COLLECTIVES_SECRET_FILE, exp",
    ):
        torchrun._secret()
    monkeypatch.setenv(secret.VARIABLE, SECRET)
    assert torchrun._secret() == SECRET
    monkeypatch.delenv(secret.VARIABLE)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert torchrun._secret() == secret.own()
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert torchrun._secret() == secret.own()


def test_a_secret_file_is_its_owner_s_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    monkeypatch.setenv(secret.FILE_VARIABLE, str(path))
    assert secret.given() == SECRET
    for mode in (0o640, 0o604, 0o602):
        path.chmod(mode)
        with pytest.raises(
            PermissionError,
            match=rf"unsafe .*: got owner \d+, mode {mode:04o}, expected a file, owner",
        ):
            secret.given()
    path.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="unsafe"):
        secret.given()


def test_a_pipe_is_not_a_secret_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(PermissionError, match="unsafe"):
        secret.read(tmp_path / "pipe")


def test_a_short_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(secret.FILE_VARIABLE, raising=False)
    monkeypatch.setenv(secret.VARIABLE, "s" * 31)
    with pytest.raises(
        ValueError, match="COLLECTIVES_SECRET too short: got 31 characters, expected at least 32"
    ):
        secret.given()


def test_a_user_s_own_secret_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found: SimpleQueue[str] = SimpleQueue()
    threads = [threading.Thread(target=lambda: found.put(secret.own())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {found.get(timeout=1) for _ in threads} == {secret.own()}
    (path,) = (tmp_path / ".cache" / "collectives").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_job_that_is_too_long_is_refused_before_anything_is_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "MAX_BYTES", 1000)
    monkeypatch.setattr(programs, "start", lambda *_: pytest.fail("the command was started"))
    wanted = Request("collectives.bench.measure", {"much": "x" * 1000}, 2, 60, {}, lambda _: None)
    with pytest.raises(ValueError, match=r"job too long: got 1\d\d\d bytes, expected at most 1000"):
        programs.launch_by(["true"], wanted, "mpirun", LOOPBACK)


def test_a_task_is_one_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(request.TASKS_VARIABLE, "mine,yours")
    assert request.module_of("mine") == request.task_of("mine") == "mine"
    assert request.task_of("collectives.bench.measure") == "bench"
    for module in ("os", "theirs", "collectives.bench.measure"):
        with pytest.raises(
            ValueError,
            match=f"unknown task: got '{module}', expected one of bench, calibrate, async",
        ):
            request.module_of(module)
    with pytest.raises(
        ValueError, match="unregistered module: got 'os', expected one of collectives"
    ):
        request.task_of("os")


def test_every_registered_module_is_there() -> None:
    assert all(
        importlib.util.find_spec(module)
        for module in (request.TASKS | request._installed_tasks()).values()
    )


def test_a_launcher_that_has_ended_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "REFUSED_SECONDS", 0.1)
    with pytest.raises(ChannelError, match="no launcher with our secret"):
        connect(("127.0.0.1", free_port()), "secret", {"role": "rank"}, seconds=1e6)
