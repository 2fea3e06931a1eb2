"""Ranks end with their launcher, however either of them ends, and a failure says which rank and why."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from collectives.cause import Cause, Kind
from collectives.emulator import allowed
from collectives.launch import RankError, driver, launch
from collectives.launch.channel import Channel
from collectives.processes import end, last_lines, start, supervise
from command import finished, having, started
from places import PATIENCE, comes_true
from sweep import each

pytestmark = pytest.mark.integration

COMMANDS = ["mpirun", "horovodrun"]
CLUSTER = "cluster:1ms,100MB/s"


def is_gone(pid: int) -> bool:
    """Soon: a killed process takes a moment to be reaped by init."""
    return comes_true(lambda: is_gone_now(pid))


def is_gone_now(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().split()[2] == "Z"


def is_empty(folder: Path) -> bool:
    """Soon: an orphaned mpirun clears away what it had after its launcher has gone."""
    return comes_true(lambda: not list(folder.iterdir()))


def nobody_has(variable: str, value: str) -> bool:
    """Soon no process on this machine has this in its environment: the command itself has gone, too."""
    return comes_true(lambda: not having(variable, value))


def pids(events: list[dict[str, list[int]]]) -> list[int]:
    return next(event["pids"] for event in events if "pids" in event)


def test_events_of_rank_0_come_back_in_order() -> None:
    events = launch("unwell", {"do": "nothing"}, 3, timeout=PATIENCE)
    assert len(set(pids(events))) == 3
    assert all(is_gone(pid) for pid in pids(events))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_failing_rank_is_named_with_its_last_lines(rank: int) -> None:
    seen: list[dict[str, list[int]]] = []
    with pytest.raises(RankError, match=rf"rank {rank} of 3 ended with exit code 1") as caught:
        launch("unwell", {"do": "raise", "rank": rank}, 3, timeout=PATIENCE, on_event=seen.append)
    assert "ValueError: a bug on purpose" in str(caught.value)
    assert all(is_gone(pid) for pid in pids(seen))


def test_a_killed_rank_is_named() -> None:
    with pytest.raises(RankError, match="rank 1 of 3 was killed by SIGKILL"):
        launch("unwell", {"do": "killed", "rank": 1}, 3, timeout=PATIENCE)


def test_the_children_of_a_rank_that_has_failed_are_ended() -> None:
    seen: list[dict[str, int]] = []
    with pytest.raises(RankError, match="rank 0 of 2 ended with exit code 1"):
        launch("unwell", {"do": "orphan", "rank": 0}, 2, timeout=PATIENCE, on_event=seen.append)
    (child,) = (event["child"] for event in seen if "child" in event)
    assert is_gone(child)


def test_of_a_large_log_only_the_end_is_read() -> None:
    with tempfile.TemporaryFile() as log:
        log.truncate(1 << 40)  # a hole: a terabyte that no memory holds
        log.seek(0, os.SEEK_END)
        log.write(b"\nits last words")
        log.flush()
        assert last_lines(log).endswith("\n    its last words")


def test_a_process_that_has_ended_keeps_its_number_until_its_group_is_ended() -> None:
    with tempfile.TemporaryFile() as log:
        process = start(["sh", "-c", "sleep 600 & echo $!; exit 3"], log, {}, [])
        while process.poll() is None:
            time.sleep(0.01)
        assert process.poll() == 3
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
        log.seek(0)
        child = int(log.read())
        assert not is_gone_now(child)
        end([process])
    assert process.returncode == 3
    assert is_gone(child)


def test_a_stopped_rank_is_named_when_time_is_up() -> None:
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(4)]
        stack.callback(end, processes := [start(["sleep", "600"], log, {}, []) for log in logs])
        processes[2].send_signal(signal.SIGSTOP)
        names = [f"rank {rank} of 4" for rank in range(4)]
        watched = names, processes, logs, lambda _: None, 0.5, {}
        with pytest.raises(
            RankError,
            match=r"^rank 2 of 4 is stopped \(SIGSTOP\): timed out after 0.5 s; its last lines:",
        ):
            supervise(*watched)
        processes[2].send_signal(signal.SIGCONT)
        with pytest.raises(
            RankError, match=r"^rank 0 of 4 and 3 more timed out after 0.5 s; its last lines:"
        ):
            supervise(*watched)


DATED_ALIKE = "touch -d @0 /proc/self/fd/1"


@pytest.mark.parametrize(
    ("peer", "failing", "said"),
    [
        (1, "kill -9 $$", "^rank 1 of 2 was killed by SIGKILL;"),
        (
            None,  # as gloo says it
            "echo ValueError; exit 1",
            "^rank 1 of 2 ended with exit code 1;.*\\n +V",
        ),
    ],
)
def test_the_rank_that_failed_is_named_although_its_peer_ends_first(
    peer: int | None, failing: str, said: str
) -> None:
    """Also where both print within one tick of the clock that dates files."""
    commands = [
        ["sh", "-c", f"echo RuntimeError; {DATED_ALIKE}; exit 1"],
        ["sh", "-c", f"sleep 0.4; {failing.replace('exit', DATED_ALIKE + '; exit')}"],
    ]
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
        for log in logs:
            os.utime(log.fileno(), (0, 0))
        processes = [
            start(command, log, {}, []) for command, log in zip(commands, logs, strict=True)
        ]
        stack.callback(end, processes)
        causes = {0: Cause(Kind.LOST, 0, "", peer)}
        with pytest.raises(RankError, match=said):
            supervise(["rank 0 of 2", "rank 1 of 2"], processes, logs, lambda _: None, 10, causes)


def test_a_rank_that_names_itself_is_the_first() -> None:
    """Although it prints last, and its peer names it."""
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
        commands = [["sh", "-c", f"sleep {late}; echo no; exit 1"] for late in (0, 0.3)]
        processes = [
            start(command, log, {}, []) for command, log in zip(commands, logs, strict=True)
        ]
        stack.callback(end, processes)
        causes = {0: Cause(Kind.OWN, 1, "", peer=1), 1: Cause(Kind.OWN, 1, "")}
        with pytest.raises(RankError, match=r"^rank 1 of 2 ended with exit code 1;"):
            supervise(["rank 0 of 2", "rank 1 of 2"], processes, logs, lambda _: None, 10, causes)


@pytest.mark.parametrize(
    ("causes", "named"),
    [
        ({0: Cause(Kind.TIMED_OUT, 0, "", 2, 0, (1,))}, ["rank 1 of 3"]),
        ({0: Cause(Kind.TIMED_OUT, 0, "", 2, 0)}, ["rank 2 of 3"]),
        ({0: Cause(Kind.OWN, 0, "")}, []),
        ({}, []),
        ({0: Cause(Kind.TIMED_OUT, 0, "", 2, 0), 2: Cause(Kind.TIMED_OUT, 2, "", 0, 0)}, []),
    ],
    ids=["gave no sign", "was waited for", "failed by itself", "was killed", "is about to end"],
)
def test_a_running_rank_that_the_failed_ones_blame_is_named(
    causes: dict[int, Cause], named: list[str]
) -> None:
    with ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        commands = [["false"], ["sleep", "600"], ["sleep", "600"]]
        processes = [
            start(command, log, {}, []) for command, log in zip(commands, logs, strict=True)
        ]
        stack.callback(end, processes)
        names = [f"rank {rank} of 3" for rank in range(3)]
        with pytest.raises(RankError) as caught:
            supervise(names, processes, logs, lambda _: None, 10, causes)
        silent = re.findall(r"^(.*) did not answer the others$", str(caught.value), re.MULTILINE)
        assert silent == named


@pytest.mark.alone
def test_a_rank_that_the_others_have_waited_for_in_vain_is_named() -> None:
    said = r"^rank 1 of 3 did not answer the others\nrank [02] of 3 ended with exit code 1; its last lines:"
    with pytest.raises(RankError, match=said):
        launch("unwell", {"do": "mute", "rank": 1}, 3, timeout=PATIENCE)


@pytest.mark.parametrize("closed", each(["<&-", "<&- 2>&-"], few=["<&- 2>&-"]))
def test_ranks_start_where_standard_streams_are_closed(closed: str) -> None:
    code = 'from collectives.launch import launch; print(launch("unwell", {"do": "nothing"}, 2, timeout=200))'
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code]
    done = finished(command)
    assert "pids" in done.stdout, done.stderr


@pytest.mark.parametrize("algorithm", ["ring", "two_tree", "recursive_doubling"])
def test_a_lost_peer_ends_the_collective_with_an_error_that_names_it(algorithm: str) -> None:
    seen: list[dict[str, str]] = []
    job = {"do": "leave", "rank": 1, "algorithm": algorithm}
    with pytest.raises(RankError, match="rank 1 of 2 ended with exit code 3"):
        launch("unwell", job, 2, timeout=PATIENCE, on_event=seen.append)
    (error,) = (event["error"] for event in seen if "error" in event)
    assert re.match(
        rf"all_reduce by {algorithm} failed on rank 0, in step \d, (sending to|receiving from) rank 1: ",
        error,
    )


@pytest.mark.parametrize("where", each(COMMANDS, few=["mpirun"]))
def test_a_command_s_failing_rank_is_named_with_its_last_lines(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although what it reports is read late: the first that fails is named."""
    heard = driver.Heard

    def late(rank: int, message: dict[str, object], channel: Channel) -> driver.Heard:
        time.sleep(0.5 if rank == 2 and "failed" in message else 0)
        return heard(rank, message, channel)

    monkeypatch.setattr(driver, "Heard", late)
    seen: list[dict[str, list[int]]] = []
    with pytest.raises(
        RankError, match=r"^rank 2 of 3 ended with exit code 1; its last lines:"
    ) as caught:
        launch(
            "unwell",
            {"do": "raise", "rank": 2},
            3,
            where=where,
            timeout=PATIENCE,
            on_event=seen.append,
        )
    assert "ValueError: a bug on purpose" in str(caught.value)
    assert f"\n{where} ended with exit code" in str(caught.value)
    assert all(is_gone(pid) for pid in pids(seen))


@pytest.mark.parametrize("where", each(COMMANDS, few=["mpirun"]))
def test_a_killed_rank_ends_the_command_and_all_others(where: str) -> None:
    seen: list[dict[str, list[int]]] = []
    with pytest.raises(RankError, match=rf"{where} ended with exit code \d+; its last lines:"):
        launch(
            "unwell",
            {"do": "killed", "rank": 1},
            3,
            where=where,
            timeout=PATIENCE,
            on_event=seen.append,
        )
    assert all(is_gone(pid) for pid in pids(seen))


@pytest.mark.parametrize("where", each(["loopback", *COMMANDS], few=["loopback", "mpirun"]))
def test_what_is_set_for_the_ranks_is_there_and_each_knows_its_place(where: str) -> None:
    job = {"do": "environment", "name": "NCCL_ALGO"}
    events = launch(
        "unwell", job, 2, where=where, timeout=PATIENCE, environment={"NCCL_ALGO": "Tree"}
    )
    assert [event["everyone"] for event in events if "everyone" in event] == [
        [["Tree", "0"], ["Tree", "1"]]
    ]


@pytest.mark.parametrize(
    "where", each(["loopback", CLUSTER, f"{CLUSTER},mpirun"], few=["loopback"])
)
def test_a_job_of_any_length_is_in_no_command_line(where: str) -> None:
    if where.startswith("cluster") and (reason := allowed()):
        pytest.skip(reason)
    much = "seldom" * (1 << 18)
    events = launch(
        "unwell", {"do": "command lines", "much": much}, 2, where=where, timeout=PATIENCE
    )
    seen = next(event["seen"] for event in events if "seen" in event)
    assert [length for length, _, _ in seen] == [len(much)] * 2
    assert all(found == 0 < lines for _, found, lines in seen)


def test_an_unknown_where_is_refused() -> None:
    with pytest.raises(
        ValueError, match="unknown where 'moon'; known are loopback, cluster, horovodrun, mpirun"
    ):
        launch("unwell", {}, 2, where="moon", timeout=1)


@pytest.mark.extended
@pytest.mark.parametrize("where", ["loopback", "mpirun"])
def test_ranks_that_take_too_long_are_ended_with_their_children(where: str) -> None:
    seen: list[dict[str, list[int]]] = []
    late = "rank 0 of 2 and 1 more" if where == "loopback" else where
    with pytest.raises(RankError, match=f"{late} timed out after 12 s; its last lines:") as caught:
        launch("unwell", {"do": "sleep"}, 2, where=where, timeout=12, on_event=seen.append)
    assert "going to sleep" in str(caught.value)
    child = next(event["child"] for event in seen if "child" in event)
    assert all(is_gone(pid) for pid in [*pids(seen), child])


def test_there_is_at_least_one_rank() -> None:
    with pytest.raises(ValueError, match="invalid number of ranks: got 0, expected 1 or more"):
        launch("unwell", {}, 0, timeout=1)


LAUNCHER = """
from collectives.cli import ending_by_signals
from collectives.emulator import allowed
from collectives.launch import launch
import sys
say = lambda event: print(event.get("pids", ""), flush=True)
with ending_by_signals():
    launch("unwell", {"do": "wait"}, 2, where=sys.argv[1], timeout=200, on_event=say)
"""


@pytest.mark.parametrize(
    ("where", "how"),
    each(
        [
            ("loopback", signal.SIGKILL),
            ("loopback", signal.SIGTERM),
            ("loopback", signal.SIGINT),
            ("mpirun", signal.SIGKILL),
            ("mpirun", signal.SIGINT),
            ("horovodrun", signal.SIGKILL),
            ("horovodrun", signal.SIGTERM),
        ],
        few=[("loopback", signal.SIGKILL), ("loopback", signal.SIGINT), ("mpirun", signal.SIGKILL)],
    ),
)
def test_ranks_end_with_their_launcher(where: str, how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHER, where]
    own = os.environ | {"TMPDIR": str(tmp_path)}
    with started(command, stdout=subprocess.PIPE, env=own) as launcher:
        assert launcher.stdout is not None
        ranks = [int(pid) for pid in launcher.stdout.readline().decode().strip("[]\n").split(",")]
        launcher.send_signal(how)
        assert launcher.wait(timeout=PATIENCE) != 0
        assert all(is_gone(pid) for pid in ranks)
        assert is_empty(tmp_path)
        assert nobody_has("TMPDIR", str(tmp_path))
