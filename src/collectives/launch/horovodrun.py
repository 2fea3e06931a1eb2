"""Ranks started by Horovod's horovodrun, with gloo as its controller.

They are on this machine, or on the hosts in the variable HOROVODRUN_HOSTS, written as for horovodrun's option -H
(`n1:2,n2:2`); horovodrun reaches them by ssh.

horovodrun writes the whole environment into the command lines of the shells that start the ranks, where every user can
read it. The launcher's secret is therefore in a file: in the folder for temporary files if all ranks are on this
machine, otherwise in the current folder, which horovodrun enters on every host.
"""

import importlib.util
import os
import sys
from pathlib import Path

from collectives.launch import secret
from collectives.launch.address import reachable
from collectives.launch.command import launch_by
from collectives.launch.request import Event, Request

MISSING = "Horovod is not installed; `make env` builds it, where a C++ compiler, cmake and make are"


def launch(wanted: Request) -> list[Event]:
    """`collectives.launch.launch`, by horovodrun. Raises ImportError if Horovod is not installed."""
    hosts = os.environ.get("HOROVODRUN_HOSTS")
    command, shared = [need(), "--gloo", "-np", str(wanted.ranks), *(["-H", hosts] if hosts else [])], secret.fresh()
    with secret.in_file(shared, str(Path.cwd()) if hosts else None) as path:
        host = reachable(not hosts)
        return launch_by(command, wanted, launcher="horovodrun", host=host, shared=shared, secret_file=path)


def need() -> str:
    """The path of the horovodrun beside this Python. Raises ImportError if Horovod is not installed."""
    horovodrun = Path(sys.executable).with_name("horovodrun")
    if importlib.util.find_spec("horovod") is None or not horovodrun.exists():
        raise ImportError(MISSING)
    return str(horovodrun)
