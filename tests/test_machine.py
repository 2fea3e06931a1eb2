from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from collectives import Machine
from collectives.machine import Delay, Level, Link, Protocol, machine, presets, text
from collectives.units import parse_bytes, parse_rate, parse_seconds

FILE = """
name: two-rooms
ranks_per_node: 2
inside: {latency: 1us, rate: 100GB/s}
network: {latency: 5us, overhead: 500ns, rate: 25GB/s}
"""


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_whole_and_names_its_source(name):
    preset = machine(name)
    assert preset.name == name
    assert preset.source


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    mine = machine(str(path))
    assert mine.ranks_per_node == 2
    assert mine.ports == 2
    assert mine.inside == Link(latency=1e-6, rate=100e9)
    assert mine.network.alpha == pytest.approx(5.5e-6)
    assert mine.network.beta == pytest.approx(4e-11)


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        (
            "inside: {latency: 1us, rate: 100GB/s}",
            "",
            "the link 'inside' is missing: nodes of 2 ranks need one",
        ),
        ("network: {latency: 5us, overhead: 500ns, rate: 25GB/s}", "", "network: Field required"),
        (
            "rate: 25GB/s",
            "rate: 25 Gbit",
            "invalid rate '25 Gbit'; expected for example 25MB/s or 23GB/s",
        ),
        (
            "latency: 5us",
            "latency: 5",
            "network.latency: expected a number with its unit, such as 5us, got 5",
        ),
        ("latency: 5us", "latency: -5us", "invalid time '-5us'"),
        ("rate: 25GB/s", "rate: 0GB/s", "network.rate: Input should be greater than 0, got 0.0"),
        (
            "ranks_per_node: 2",
            "ranks_per_node: 0",
            "ranks_per_node: Input should be greater than or equal to 1",
        ),
        (
            "ranks_per_node: 2",
            "ranks_per_node: 2\nports_per_node: 3",
            "uneven ports: got 3 for 2 ranks, expected a divisor",
        ),
        (
            "ranks_per_node: 2",
            "ranks_per_node: 2\nslower: {0: 0.5}",
            "slower.0: Input should be greater than or equal to 1",
        ),
        (
            "ranks_per_node: 2",
            "rank_per_node: 2",
            "unknown field 'rank_per_node': did you mean 'ranks_per_node'?",
        ),
        (
            "ranks_per_node: 2",
            "gpus_per_node: 2",
            "unknown field 'gpus_per_node': did you mean 'ranks_per_node'?",
        ),
        (
            "rate: 25GB/s",
            "bandwidth: 25GB/s",
            "network: unknown field 'bandwidth': did you mean 'rate'? Known are",
        ),
        ("name: two-rooms", "- name", "invalid YAML"),
        (
            "name: two-rooms",
            "name: two-rooms\nlevels: [{name: rack, nodes: 4}, {name: row, nodes: 6}]",
            "expected each a multiple of the one before",
        ),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(tmp_path, was, becomes, says):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE.replace(was, becomes))
    with pytest.raises(ValueError, match=r"mine\.yaml") as error:
        machine(str(path))
    assert says in str(error.value)


def test_what_is_no_machine_at_all(tmp_path):
    with pytest.raises(ValueError, match=r"unknown machine 'sumit': did you mean 'summit'\?"):
        machine("sumit")
    with pytest.raises(ValueError, match=r"there is no machine file nowhere\.yaml"):
        machine("nowhere.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    with pytest.raises(ValueError, match="got no fields, expected some"):
        machine(str(tmp_path / "list.yaml"))


def test_protocols_are_taken_in_order_and_the_links_come_last():
    small = Protocol(name="small", up_to="1K")
    trees = Protocol(name="trees", algorithms=("tree",))
    of = Machine(name="x", network=Link(latency=1e-6, rate=1e9), protocols=(trees, small))
    assert [protocol.name for protocol in of.protocols_for("tree", 1)] == ["trees", "small", ""]
    assert [protocol.name for protocol in of.protocols_for(None, 1)] == ["small", ""]
    assert of.protocols_for("ring", 1)[-1].network.latency == 1e-6


def test_a_protocol_may_be_for_small_buffers_only():
    few = Protocol(name="few", buffer_up_to="1K", up_to="64K")
    of = Machine(name="x", network=Link(latency=1e-6, rate=1e9), protocols=(few,))
    assert [protocol.name for protocol in of.protocols_for("ring", 1024)] == ["few", ""]
    assert [protocol.name for protocol in of.protocols_for("ring", 1025)] == [""]


@pytest.mark.parametrize(
    ("field", "least", "below"),
    [
        ("protocols", ({"name": "LL", "up_to": 0},), ({"name": "LL", "up_to": -1},)),
        ("protocols", ({"name": "LL", "buffer_up_to": 0},), ({"name": "LL", "buffer_up_to": -1},)),
        ("slower", {0: 1.0}, {0: 0.999}),
        ("slower", {0: 16.0}, {-1: 16.0}),
        ("gamma", 0.0, -1e-12),
        ("ranks_per_node", 1, 0),
        ("levels", ({"name": "rack", "nodes": 2},), ({"name": "rack", "nodes": 1},)),
    ],
)
def test_the_least_that_a_field_takes(field, least, below):
    network = Link(rate=1e9)
    assert Machine(name="edge", network=network, **{field: least}).network == network
    with pytest.raises(ValidationError):
        Machine(name="edge", network=network, **{field: below})


def test_machines_cannot_be_changed_by_accident():
    with pytest.raises(ValidationError):
        machine("summit").ranks_per_node = 8
    assert Level(name="rack", nodes=4).uplink is None


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_seconds, "5us", 5e-6),
        (parse_seconds, "0.47 us", 0.47e-6),
        (parse_seconds, "3ns", 3e-9),
        (parse_rate, "23GB/s", 23e9),
        (parse_rate, ".5TB/s", 0.5e12),
        (parse_bytes, "128K", 131072),
    ],
)
def test_units(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_seconds, "5"), (parse_seconds, "5 u"), (parse_seconds, "us"), (parse_rate, "25"), (parse_rate, "25Gb/s"),
     (parse_rate, "-1GB/s"), (parse_seconds, "1e3s")],
)  # fmt: skip
def test_what_is_no_quantity(parse, text):
    with pytest.raises(ValueError, match="expected for example"):
        parse(text)


names = st.text(max_size=20)
seconds = st.floats(0, 1e6)
rates = st.floats(1e-3, 1e18)
links = st.builds(Link, latency=seconds, overhead=seconds, rate=rates)
delays = st.builds(Delay, latency=seconds, overhead=seconds)
protocols = st.builds(
    Protocol,
    name=names,
    algorithms=st.none() | st.lists(names, max_size=3).map(tuple),
    up_to=st.none() | st.integers(0, 1 << 40),
    startup=seconds,
    share=st.floats(0.001, 1),
    inside=delays,
    network=delays,
)
machines = st.builds(
    Machine,
    name=names,
    source=names,
    ranks_per_node=st.integers(1, 16),
    inside=links,
    network=links,
    levels=st.lists(
        st.builds(Level, name=names, nodes=st.just(4), latency=seconds, rate=st.none() | rates),
        max_size=1,
    ),
    protocols=st.lists(protocols, max_size=2),
    slower=st.dictionaries(st.integers(0, 1 << 20), st.floats(1, 1e6), max_size=3),
    gamma=seconds,
)


@given(machines)
@example(Machine(name="a: b", network=Link(rate=50e3)))
@example(Machine(name="a\x85b", source="\u2028 µ", network=Link(rate=50e3)))
@example(
    Machine(name="true", source="CPU # 3, 'x': \"y\" \t\n", network=Link(latency=1e-12, rate=0.01))
)
def test_what_is_written_is_read_back_equal(made):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mine.yaml"
        path.write_text(text(made), encoding="utf8")
        assert machine(str(path)) == made


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_read_back_equal(tmp_path, name):
    (tmp_path / "mine.yaml").write_text(text(machine(name)), encoding="utf8")
    assert machine(str(tmp_path / "mine.yaml")) == machine(name)


def test_one_link_is_no_yaml():
    assert machine("5ms,25MB/s").name == "5ms,25MB/s"
    with pytest.raises(ValueError, match=r"machine 5ms', x: '1,25MB/s: .*invalid time"):
        machine("5ms', x: '1,25MB/s")


def test_a_file_that_would_fill_the_memory_is_refused(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: &a [x, x]\nsource: [*a, *a]\n")
    with pytest.raises(
        ValueError, match=r"mine\.yaml: invalid YAML: line 2, column 10: got an alias"
    ):
        machine(str(tmp_path / "mine.yaml"))
