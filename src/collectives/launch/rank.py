"""One rank's process: dies with its launcher, joins the group, runs the module it was given."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

PR_SET_PDEATHSIG = 1


def main(job: dict[str, Any]) -> None:
    """Run ``job["module"].run(settings, report)`` as one rank; only rank 0's reports go anywhere."""
    die_with(job["launcher"])
    from torch import distributed as dist

    timeout = timedelta(seconds=job["timeout"])
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but not in the package's list
        "127.0.0.1",
        job["port"],
        job["ranks"],
        is_master=job["rank"] == 0,
        timeout=timeout,
        master_listen_fd=job.get("listener"),
    )
    dist.init_process_group("gloo", store=store, rank=job["rank"], world_size=job["ranks"], timeout=timeout)
    importlib.import_module(job["module"]).run(job["settings"], _reporter(job.get("events")))
    dist.barrier()  # rank 0 keeps the meeting point: nobody may leave before all are done
    dist.destroy_process_group()


def die_with(launcher: int) -> None:
    """Have this process killed when the launcher ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_poll_parent, args=(launcher,), daemon=True).start()
    if os.getppid() != launcher:  # it ended before we asked
        sys.exit("the launcher is gone")


def _poll_parent(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _reporter(events: int | None) -> Callable[[dict[str, Any]], None]:
    if events is None:
        return lambda _: None
    stream = os.fdopen(events, "w", buffering=1)
    return lambda event: print(json.dumps(event), file=stream)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except Exception:
        # Leave at once: the library's threads would abort an orderly exit and hide what went wrong.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
