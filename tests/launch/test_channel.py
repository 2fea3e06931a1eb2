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
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from collectives.launch import address, channel, request, secret, torchrun
from collectives.launch import command as by_command
from collectives.launch.address import LOOPBACK
from collectives.launch.channel import LAUNCHER, PEER, AuthenticatedConnection, ChannelError, Listener, connect
from collectives.launch.request import Request
from collectives.launch.torchrun import DRIVER, PROCESS, Hub

pytestmark = pytest.mark.integration  # connections, and seconds of waiting for strangers


SECRET, OTHER = "s" * 32, "o" * 32
JOB = {"task": "bench", "settings": {"x": "ü\n"}}


Pair = tuple[AuthenticatedConnection, AuthenticatedConnection, socket.socket]


class Launcher:
    """Gives everyone with the secret the job, and keeps what they say."""

    def __init__(self) -> None:
        self.heard: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self.listener = Listener(LOOPBACK, SECRET, {"rank"}, self.serve)
        self.address = self.listener.address

    def serve(self, connection: AuthenticatedConnection, _: str, rank: int) -> None:
        connection.send(JOB)
        while (message := connection.receive()) is not None:
            self.heard.put((rank, message))

    def works(self) -> bool:
        """Whether a rank with the secret gets its job and is heard, and nobody else has been."""
        with closing(connect(self.address, SECRET, "rank", 3, 5)) as connection:
            connection.send({"event": {"row": 1}})
            return connection.receive() == JOB and self.heard.get(timeout=5) == (3, {"event": {"row": 1}})


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.listener.close()
    assert made.heard.empty()


def is_closed(stranger: socket.socket) -> bool:
    """Whether the other end closes within ten seconds, whatever it has said before."""
    stranger.settimeout(10)
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
        connect(launcher.address, OTHER, "rank", 3, 0)
    assert launcher.works()


def test_a_role_that_is_not_expected_gets_nothing(launcher: Launcher) -> None:
    with pytest.raises(ChannelError, match="no launcher with our secret"):
        connect(launcher.address, SECRET, "driver", 3, 0)


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"rank 3 nonsense\n",
        b"\xff" * 300 + b"\n",
        b"x" * 10_000_000,
        b"[" * 200 + b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["nothing", "no nonce", "no text", "10 MB", "nested", "HTTP"],
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
def test_a_stranger_has_a_time_limit(launcher: Launcher, is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "STRANGER_SECONDS", 0.5)
    with socket.create_connection(launcher.address) as stranger:
        for _ in range(40 if is_slow else 0):
            try:
                stranger.sendall(b"r")
            except OSError:
                return
            time.sleep(0.05)
        assert is_closed(stranger)
    assert launcher.works()


def test_of_too_many_strangers_some_are_closed(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MOST_STRANGERS", 4)
    strangers = [socket.create_connection(launcher.address) for _ in range(8)]
    assert launcher.works()
    assert sum(not waits(each) for each in strangers if each.recv(100) and not each.setblocking(False)) >= 4
    for stranger in strangers:
        stranger.close()


def test_a_flood_of_strangers_ends_few_handshakes(launcher: Launcher) -> None:
    with ExitStack() as stack:
        first, flood = (
            [stack.enter_context(socket.create_connection(launcher.address)) for _ in range(many)]
            for many in (60, channel.MOST_STRANGERS)
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
            connect(address, SECRET, "rank", 3, 0)
        recorded = said.get(timeout=5)
    with socket.create_connection(launcher.address) as stranger:
        stranger.sendall(recorded)
        assert is_closed(stranger)
    assert launcher.works()


@contextmanager
def relay(to: tuple[str, int], said: SimpleQueue[bytes]) -> Iterator[tuple[tuple[str, int], SimpleQueue[bytes]]]:
    """Passes on what both say; what the first to connect says is also kept."""
    listener = socket.create_server((LOOPBACK, 0))

    def run() -> None:
        come, _ = listener.accept()
        with come, socket.create_connection(to) as there:
            come.sendall(there.recv(1 << 16))
            time.sleep(0.2)  # both lines
            said.put(line := come.recv(1 << 16))
            there.sendall(line)
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
    addresses = {name: [argparse.Namespace(family=socket.AF_INET, address=found[name])] for name in found}
    monkeypatch.setattr(address.psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(socket, "create_server", lambda at: closing_nothing(at[0] in found.values()))
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
            come, _ = false.accept()
            with come:
                come.sendall(b"collectives 1 " + b"0" * 64 + b"\n")
                come.recv(1 << 16)
                come.sendall(b"0" * 64 + b' {"task": "bench"}\n')
                come.recv(1 << 16)

        thread = threading.Thread(target=lie)
        thread.start()
        with pytest.raises(ChannelError, match="a message that the other end has not sent"):
            connect(false.getsockname()[:2], SECRET, "rank", 0, 0)
        thread.join()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A launcher's and a peer's end, between which someone can write to the launcher."""
    ours, theirs = socket.socketpair()
    with closing(Tcpless(ours, LAUNCHER)) as launcher, closing(Tcpless(theirs, PEER)) as peer:
        thread = threading.Thread(target=peer.agree, args=(SECRET, (LOOPBACK, 1), "rank", 0, ("1", "2")))
        thread.start()
        launcher.agree(SECRET, (LOOPBACK, 1), "rank", 0, ("1", "2"))
        thread.join()
        yield launcher, peer, theirs


class Tcpless(AuthenticatedConnection):
    """One end of a socket pair."""

    def __init__(self, to: socket.socket, own: str) -> None:
        pretending = TcpOptions(to.family, to.type, fileno=to.detach())
        super().__init__(pretending, own, 5)


class TcpOptions(socket.socket):
    """A socket whose options are not TCP's."""

    def setsockopt(self, *_: Any) -> None:
        """Nothing."""


def line_of(connection: AuthenticatedConnection, message: dict[str, Any]) -> str:
    """A message as the connection would write it, which counts as sent."""
    lines: list[str] = []
    connection.write = lines.append  # type: ignore[method-assign]
    connection.send(message)
    del connection.write
    return lines[0]


def test_a_message_cannot_be_repeated(pair: Pair) -> None:
    launcher, peer, _ = pair
    line = line_of(peer, {"event": 1})
    peer.write(line)
    assert launcher.receive() == {"event": 1}
    peer.write(line)
    with pytest.raises(ChannelError, match="not sent, or not as it came"):
        launcher.receive()


def test_messages_cannot_be_reordered_or_left_out(pair: Pair) -> None:
    launcher, peer, _ = pair
    line_of(peer, {"event": 1})
    peer.write(line_of(peer, {"event": 2}))
    with pytest.raises(ChannelError):
        launcher.receive()


def test_a_message_cannot_be_changed(pair: Pair) -> None:
    launcher, peer, _ = pair
    peer.write(line_of(peer, {"event": 1}).replace("1}", "2}"))
    with pytest.raises(ChannelError):
        launcher.receive()


def test_a_message_cannot_be_sent_back(pair: Pair) -> None:
    launcher, peer, _ = pair
    peer.write(line_of(launcher, {"event": 1}))
    with pytest.raises(ChannelError):
        launcher.receive()


def test_a_message_of_another_rank_s_connection_is_not_taken(launcher: Launcher) -> None:
    ranks = [connect(launcher.address, SECRET, "rank", rank, 5) for rank in range(2)]
    with closing(ranks[0]) as one, closing(ranks[1]) as two:
        two.write(line_of(one, {"event": 1}))
        assert two.receive() == JOB
        assert two.receive() is None
    assert launcher.works()


def test_a_message_has_a_limit(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MOST_BYTES", 1000)
    launcher, peer, _ = pair
    with pytest.raises(ValueError, match="message too long: got 1011 bytes, expected at most 1000"):
        peer.send({"event": "x" * 998})
    launcher._most = 1000
    peer.write("x" * 70_000)
    with pytest.raises(ChannelError, match="a line too long"):
        launcher.receive()


def test_the_end_of_the_launcher_ends_the_connection(launcher: Launcher) -> None:
    with closing(connect(launcher.address, SECRET, "rank", 0, 5)) as rank:
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
    until = time.monotonic() + 5
    while not set(ranks) <= set(hub.processes):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_of_torchrun_finds_rank_0_whatever_a_stranger_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "STRANGER_SECONDS", 0.5)
    hub = Hub()
    with socket.create_server((LOOPBACK, 0)) as idle, closing(Listener(LOOPBACK, SECRET, {PROCESS}, hub.serve)) as ours:
        store = Store("", "nonsense", "127.0.0.1 99999999", "127.0.0.1 -1", f"127.0.0.1 {idle.getsockname()[1]}")
        store.set(torchrun.KEY, "{} {}".format(*ours.address))
        with closing(torchrun._joined(store, SECRET, 1)):
            assert not store.lies
            await_processes(hub, 1)


def test_nodes_with_different_secrets_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVES_JOIN_SECONDS", "1")
    hub, store = Hub(), Store()
    with closing(Listener(LOOPBACK, SECRET, {PROCESS}, hub.serve)) as ours:
        store.set(torchrun.KEY, "{} {}".format(*ours.address))
        with pytest.raises(
            TimeoutError, match="rank 0's process has not shown our secret within 1 s; is COLLECTIVES_SEC"
        ):
            torchrun._joined(store, OTHER, 1)
        with pytest.raises(
            TimeoutError, match="torchrun's processes 0, 1 have not joined within 1 s; is COLLECTIVES_SEC"
        ):
            torchrun._gather(store, hub, 2, "x")


@pytest.mark.parametrize("wrong", ["", "0", "-1", "3601", "9" * 5000, "5m", "1.5", "٣"])
def test_a_time_to_meet_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("COLLECTIVES_JOIN_SECONDS", wrong)
    with pytest.raises(ValueError, match=r"invalid COLLECTIVES_JOIN_SECONDS: got .*, expected whole seconds, 1 to"):
        torchrun._gather(Store(), Hub(), 2, "x")


def test_an_order_goes_to_the_ranks_that_it_is_for_and_a_late_answer_is_not_taken_for_another() -> None:
    hub = Hub()
    with closing(Listener(LOOPBACK, SECRET, {PROCESS, DRIVER}, hub.serve)) as ours:
        processes = [connect(ours.address, SECRET, PROCESS, rank, 5) for rank in range(2)]
        await_processes(hub, 0, 1)

        def order(*answers: tuple[int, dict[str, Any]]) -> Any:
            with closing(connect(ours.address, SECRET, DRIVER, 0, 5)) as driver:
                driver.send({"ranks": 2})
                orders = [process.receive() for process in processes]
                for rank, answer in answers:
                    processes[rank].send({"nth": orders[rank]["nth"], **answer})  # type: ignore[index]
                said = driver.receive()
                assert said is not None
                return said["failed"]

        assert order((0, {"failed": None}), (1, {"failed": None})) is None
        assert order((1, {"failed": "SIGKILL"})) == "rank 1 SIGKILL"
        processes[0].send({"nth": 2, "failed": "too late"})
        assert order((1, {"failed": None}), (0, {"failed": None})) is None
        processes[1].close()
        for _ in range(2):
            with closing(connect(ours.address, SECRET, DRIVER, 0, 5)) as driver:
                driver.send({"ranks": 2})
                assert driver.receive() == {"failed": "rank 1: its torchrun process has ended"}
        processes[0].close()


def test_without_a_secret_nothing_is_ordered_beyond_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (secret.VARIABLE, secret.FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "node1")
    with pytest.raises(ValueError, match="no secret: got neither COLLECTIVES_SECRET nor COLLECTIVES_SECRET_FILE, exp"):
        torchrun._secret()
    monkeypatch.setenv(secret.VARIABLE, SECRET)
    assert torchrun._secret() == SECRET
    monkeypatch.delenv(secret.VARIABLE)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert torchrun._secret() == secret.own()
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert torchrun._secret() == secret.own()


def test_a_secret_file_is_its_owner_s_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(secret.VARIABLE, raising=False)
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    monkeypatch.setenv(secret.FILE_VARIABLE, str(path))
    assert secret.given() == SECRET
    for mode in (0o640, 0o604, 0o602):
        path.chmod(mode)
        with pytest.raises(
            PermissionError, match=rf"unsafe .*: got owner \d+, mode {mode:04o}, expected a file, owner"
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
    with pytest.raises(ValueError, match="COLLECTIVES_SECRET too short: got 31 characters, expected at least 32"):
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


def test_a_job_that_is_too_long_is_refused_before_anything_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MOST_BYTES", 1000)
    monkeypatch.setattr(by_command, "start", lambda *_: pytest.fail("the command was started"))
    wanted = Request("collectives.bench.measure", {"much": "x" * 1000}, 2, 60, {}, lambda _: None)
    with pytest.raises(ValueError, match=r"job too long: got 1\d\d\d bytes, expected at most 1000"):
        by_command.launch_by(["true"], wanted, launcher="mpirun", host=LOOPBACK, shared=SECRET)


def test_a_task_is_one_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(request.TASKS_VARIABLE, "mine,yours")
    assert request.module_of("mine") == request.task_of("mine") == "mine"
    assert request.task_of("collectives.bench.measure") == "bench"
    for module in ("os", "theirs", "collectives.bench.measure"):
        with pytest.raises(ValueError, match=f"unknown task: got '{module}', expected one of bench, calibrate, async"):
            request.module_of(module)
    with pytest.raises(ValueError, match="unregistered module: got 'os', expected one of collectives"):
        request.task_of("os")


def test_every_registered_module_is_there() -> None:
    assert all(importlib.util.find_spec(module) for module in (request.TASKS | request._installed_tasks()).values())
