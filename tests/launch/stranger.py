"""Another user of the machine, for test_trust.py: reads command lines, connects to every port, writes into every store.

    python stranger.py WISH TAG PORT...

WISH is "run", to have code of its own run, or "stop", to have a launch fail. TAG is in the
environment of the processes that it may attack, so that it leaves other tests alone; ports are
those that it knows already. It attacks what is ours: mpirun's and horovodrun's own ports are not.
It knows no secret. When its standard input ends it prints what it has read, and where, as JSON.
"""

from __future__ import annotations

import json
import re
import select
import socket
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta

import psutil
from torch import distributed as dist

GARBAGE = [
    b"",
    b"\n",
    b"x" * (4 << 20),
    b"rank 0 " + b"0" * 64 + b"\n" + b"0" * 64 + b' {"event": {}}\n',
]
OURS = re.compile(r"\S*python\S* (-c|-m collectives\.launch)\b")


def main(wish: str, tag: str, known: set[int]) -> None:
    commands: set[str] = set()
    keys: set[str] = set()
    attacked: set[int] = set()
    with socket.create_server(("127.0.0.1", 0)) as tarpit:
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            for port in (known | ports(tag, commands)) - attacked - {tarpit.getsockname()[1]}:
                attacked.add(port)
                threading.Thread(target=garble, args=(port,), daemon=True).start()
                threading.Thread(
                    target=forge, args=(wish, port, tarpit.getsockname()[1], keys), daemon=True
                ).start()
            time.sleep(0.1)
    print(
        json.dumps(
            {"commands": sorted(commands), "keys": sorted(keys), "attacked": sorted(attacked)}
        ),
        flush=True,
    )


def ports(tag: str, commands: set[str]) -> set[int]:
    """Where our processes listen.

    Their command lines are kept on the way, as are those of all that they start.
    """
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if tag in process.environ().values():
                command = " ".join(process.cmdline())
                commands.add(command)
                if OURS.match(command):
                    found |= {
                        each.laddr.port
                        for each in process.net_connections("tcp")
                        if each.status == "LISTEN"
                    }
    return found


def garble(port: int) -> None:
    """Connections that say nothing, nonsense, and too much."""
    kept = []
    for said in GARBAGE * 3:
        with suppress(OSError):
            kept.append(socket.create_connection(("127.0.0.1", port), 5))
            kept[-1].sendall(said)
    time.sleep(600)


def forge(wish: str, port: int, tarpit: int, keys: set[str]) -> None:
    """If it is a store of torch's, everything that a launcher might say there, wherever it might be looked for."""
    with suppress(RuntimeError, OSError):
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=3))
        order = {
            "ranks": 4,
            "environment": {},
            "command": [sys.executable, "-c", "import evil"],
            "task": "evil",
        }
        job = {"module": "evil", "task": "evil", "settings": {}, "timeout": 60, "ranks": 2}
        run = {"job": job, **{f"work/{nth}": order for nth in range(1, 9)}}
        said = (
            run
            if wish == "run"
            else {"failed": {"rank": 0, "lines": ["forged"]}, "end": "", "over": 0}
        )
        while True:
            there = {key for key in store.list_keys() if "/" in key}
            keys |= there
            for prefix in {
                "collectives",
                *(key.rpartition("/")[0] for key in there if "pg" not in key),
            }:
                for key, value in said.items():
                    store.set(f"{prefix}/{key}", json.dumps(value))
            store.set("collectives/hub", f"127.0.0.1 {tarpit}")
            time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], set(map(int, sys.argv[3:])))
