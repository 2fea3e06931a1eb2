"""Describe an emulated link to NCCL, as the XML of NCCL_TOPO_FILE, so that NCCL chooses and predicts for that link.

Of an emulated host's network device NCCL finds a rate of 10 Gb/s and no latency, unless a file has
other values: these win, and enter NCCL's cost model. NCCL reads the file before it looks for
devices, adds the GPUs that it finds, and removes what it does not find, so a file adds no GPU and
no network. The text is as NCCL_TOPO_DUMP_FILE writes it, because NCCL reads little more: one space
before an attribute, values in quotes.

NCCL's search for a path to the network tries rates down to 0.12 GB/s. On a slower link it finds
none, assumes 0.1 GB/s, and ignores the latency (search.cc of NCCL 2.28 to 2.30). Such a link is
described some times as fast, in latency and rate, and NCCL's times are that many times too short,
but for its own overheads of a few us a hop. The choice depends on the ratio of latency and rate,
which stays.
"""

import os
import platform
import re
from pathlib import Path
from xml.etree import ElementTree

VARIABLE = "NCCL_TOPO_FILE"

SLOWEST = 960  # Mbit/s: 0.12 GB/s, the lowest rate of NCCL's search

# NCCL's names for platform.machine().
ARCHITECTURES = {"aarch64": "arm64", "ppc64le": "ppc64"}
CPU_INFO = {"vendor": "vendor_id", "familyid": "cpu family", "modelid": "model"}

DEVICES = Path("/sys/bus/pci/devices")
NVIDIA, DISPLAY = "0x10de", "0x03"  # a PCI device's vendor, and the beginning of a GPU's class


def topology_file(latency: float, rate: float, interface: str, cpu: dict[str, str]) -> str:
    """Return the file's text for a network interface with this latency in seconds and rate in bytes/s.

    ``cpu`` has the attributes of the CPU that the interface belongs to, as `cpu_attributes` finds
    them.

    >>> print(topology_file(5e-3, 25e6, "eth0", {"numaid": "-1", "arch": "arm64"}))
    <system version="1">
      <cpu numaid="-1" arch="arm64">
        <nic>
          <net name="eth0" speed="960" latency="1041.66667" times_as_fast="4.8"/>
        </nic>
      </cpu>
    </system>
    """
    speed = max(SLOWEST, round(rate * 8e-6))
    times = speed / (rate * 8e-6)
    link = {
        "name": interface,
        "speed": speed,
        "latency": f"{latency * 1e6 / times:.9g}",
        "times_as_fast": f"{times:.9g}",
    }
    return (
        f'<system version="1">\n  <cpu {_attributes(cpu)}>\n    <nic>\n      <net {_attributes(link)}/>\n'
        "    </nic>\n  </cpu>\n</system>"
    )


def _attributes(values: dict[str, object] | dict[str, str]) -> str:
    return " ".join(f'{name}="{value}"' for name, value in values.items())


def cpu_attributes(info: Path = Path("/proc/cpuinfo"), devices: Path = DEVICES) -> dict[str, str]:
    """Return NCCL's attributes of the CPU of this machine's first GPU.

    NCCL requires them of a CPU that has no GPU, and looks for a GPU's CPU by its NUMA node: -1
    where that is unknown.
    """
    found = {
        "numaid": _numa_node(devices),
        "arch": ARCHITECTURES.get(platform.machine(), platform.machine()),
    }
    if found["arch"] == "x86_64":
        text = info.read_text()
        for name, written in CPU_INFO.items():
            value = re.search(rf"^{written}\s*: (\S+)$", text, re.MULTILINE)
            found[name] = value[1] if value else "0"
    return found


def _numa_node(devices: Path) -> str:
    for device in sorted(devices.glob("*")):
        vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        if vendor == NVIDIA and kind.startswith(DISPLAY):
            return (device / "numa_node").read_text().strip()
    return "-1"


def times_as_fast() -> float:
    """Return how many times as fast as it is the file in NCCL_TOPO_FILE describes the link.

    1 for any other file.
    """
    try:
        net = ElementTree.parse(os.environ.get(VARIABLE, "")).find(".//net")
    except (OSError, ElementTree.ParseError):
        return 1.0
    return float(net.get("times_as_fast", 1)) if net is not None else 1.0
