"""How many files stand on the way of a value through the house, and how many modules an import loads: falling only."""

import sys

import pytest

from command import finished

pytestmark = pytest.mark.integration

# The modules of ours that an import loads.
LOADED = {
    "collectives.core.verify": 9,
    "collectives.api": 65,
    "collectives_course.grade": 25,
    "collectives.bench.measure": 63,
}

# Files of ours whose functions run, by what runs: imported first, then called.
WAYS = {
    "a schedule that is proved": (
        9,
        "from collectives.algorithms import build\nfrom collectives.core.verify import verify",
        "verify(build('all_reduce', 'two_tree', 8))",
    ),
    "a schedule that is simulated": (
        6,
        "from collectives.machine import machine\nfrom collectives.algorithms import build\n"
        "from collectives.simulator.simulation import simulate\n"
        "links, ring = machine('dgx1'), build('all_reduce', 'ring', 8)\n"
        "simulate(ring, links, 8)  # compiles",
        "simulate(ring, links, 1 << 20)",
    ),
}
COUNT = """
import sys
from pathlib import Path
import collectives
source = str(Path(collectives.__file__).parents[1])
files = set()
def called(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(source):
        files.add(frame.f_code.co_filename)
{before}
sys.setprofile(called)
{way}
sys.setprofile(None)
print(len(files))
"""


def printed(code: str) -> int:
    return int(finished([sys.executable, "-c", code], check=True).stdout)


@pytest.mark.parametrize("module", LOADED)
def test_an_import_loads_few_modules(module: str) -> None:
    ours = "sum(name.partition('.')[0].startswith('collectives') for name in sys.modules)"
    assert printed(f"import sys, {module}\nprint({ours})") <= LOADED[module]


@pytest.mark.parametrize("name", WAYS)
def test_a_way_has_few_files(name: str) -> None:
    most, before, way = WAYS[name]
    assert printed(COUNT.format(before=before, way=way)) <= most
