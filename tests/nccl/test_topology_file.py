"""The topology file that describes an emulated link: NCCL's form, the link's values, and the CPU that it belongs to."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from collectives.nccl import topology_file as topology

CPU = {
    "numaid": "-1",
    "arch": "x86_64",
    "vendor": "GenuineIntel",
    "familyid": "6",
    "modelid": "207",
}

# What NCCL 2.28.9 dumped on a machine with one GPU, without the attributes of the GPU's PCI device.
DUMPED = """\
<system version="1">
  <cpu host_hash="0xae8e4be3b15a77e7" numaid="-1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207">
    <pci busid="0000:00:06.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="0">
      <gpu dev="0" sm="90" rank="0" gdr="1"/>
    </pci>
    <nic>
      <net name="eth0" dev="0" latency="0" speed="10000" port="0" guid="0x0" maxconn="65536" gdr="0"/>
    </nic>
  </cpu>
</system>
"""

# Which elements NCCL's loaders of the file accept in which (ncclTopoXmlLoad* of xml.cc).
WITHIN = {
    "system": {"cpu"},
    "cpu": {"pci", "nic"},
    "pci": {"pci", "gpu", "nic"},
    "nic": {"net"},
    "gpu": set(),
}
LINE = re.compile(r' *<(/?)(\w+)((?: \w+="[^"]{1,254}")*)(/?)>')


@pytest.mark.parametrize(
    "text", [DUMPED, topology.topology_file(5e-3, 25e6, "eth0", CPU)], ids=["NCCL", "ours"]
)
def test_the_text_has_the_form_that_nccl_reads(text: str) -> None:
    assert all(LINE.fullmatch(line) for line in text.splitlines())
    root = ElementTree.fromstring(text)
    assert (root.tag, root.get("version")) == ("system", "1")
    for parent in root.iter():
        assert {child.tag for child in parent} <= WITHIN.get(parent.tag, set())
        assert len(parent.attrib) <= 16 - 8  # NCCL adds up to 8 to a net
    assert CPU.items() <= root.find("cpu").attrib.items()


@pytest.mark.parametrize(
    ("latency", "rate", "speed", "microseconds", "times"),
    [
        (5e-6, 25e9, 200_000, 5, 1),
        (1e-3, 120e6, 960, 1000, 1),
        (5e-3, 25e6, 960, 5000 / 4.8, 4.8),
        (0.0, 1.0, 960, 0, 120e6),
        (20e-3, 6.25e6, 960, 20_000 / 19.2, 19.2),
        (1e-3, 333.3333e6, 2667, 1e3 * 333.3333 / 333.375, 333.375 / 333.3333),
    ],
)
def test_a_link_that_is_too_slow_for_nccl_s_search_is_described_faster(
    latency: float, rate: float, speed: int, microseconds: float, times: float
) -> None:
    """Check the values of the link.

    Latency times rate is the link's own, because NCCL's choice depends on it.
    """
    net = ElementTree.fromstring(topology.topology_file(latency, rate, "eth0", CPU)).find(".//net")
    assert (net.get("name"), int(net.get("speed"))) == ("eth0", speed)
    assert float(net.get("latency")) == pytest.approx(microseconds)
    assert float(net.get("times_as_fast")) == pytest.approx(times)
    assert float(net.get("latency")) * speed == pytest.approx(latency * rate * 8)


def test_the_reader_finds_how_much_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(topology.VARIABLE, raising=False)
    assert topology.times_as_fast() == 1
    file = tmp_path / "topology.xml"
    monkeypatch.setenv(topology.VARIABLE, str(file))
    texts = [
        "<system",
        DUMPED,
        '<system version="1"/>',
        topology.topology_file(5e-3, 25e6, "eth0", CPU),
    ]
    found = [topology.times_as_fast()]
    for text in texts:
        file.write_text(text)
        found.append(topology.times_as_fast())
    assert found == [1, 1, 1, 1, 4.8]


def test_the_cpu_is_that_of_the_first_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, devices = tmp_path / "cpuinfo", tmp_path / "devices"
    info.write_text(
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: EPYC 7\n"
    )
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    amd = {"arch": "x86_64", "vendor": "AuthenticAMD", "familyid": "25", "modelid": "1"}
    assert topology.cpu_attributes(info, devices) == {"numaid": "-1"} | amd
    for address, vendor, kind, node in (
        ("a", "0x10de", "0x060400", 0),
        ("b", "0x8086", "0x030000", 0),
        ("c", *GPU),
    ):
        (devices / address).mkdir(parents=True)
        for name, value in (("vendor", vendor), ("class", kind), ("numa_node", node)):
            (devices / address / name).write_text(f"{value}\n")
    assert topology.cpu_attributes(info, devices) == {"numaid": "1"} | amd
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert topology.cpu_attributes(tmp_path / "none", devices) == {"numaid": "1", "arch": "arm64"}


GPU = "0x10de", "0x030200", 1
