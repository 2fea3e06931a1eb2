"""A machine fitted to all-reduces: planted constants are found again, and a log is fitted by the command."""

from pathlib import Path

import pytest

from collectives.bench.fitting import (
    CALL,
    Measured,
    changed,
    constants_of,
    fit,
    library_algorithms,
    part_of,
    predicted,
    ways,
)
from collectives.machine import Link, Machine, Protocol, machine
from collectives.nccl import formulas
from command import Capture, run

SIZES = (8, 4096, 1 << 20, 1 << 24, 1 << 28)


def two_links() -> Machine:
    """Nodes of three ranks; switches of a node add at half the rate."""
    return Machine(
        name="sheet",
        ranks_per_node=3,
        inside=Link(latency="2us", rate="100GB/s"),
        network=Link(latency="8us", overhead="1us", rate="20GB/s"),
        fastest_protocol=True,
        protocols=(
            Protocol(name="Simple", inside={"latency": "2us"}, network={"latency": "8us"}),
            Protocol(name="NVLS", algorithms=("nvls_tree",), share=0.5),
        ),
    )


def rows_on(on: Machine, nodes: int, ranks: int, sizes: tuple[int, ...] = SIZES) -> list[Measured]:
    """Return the rows that a log of that machine would have."""
    asked = [Measured(nodes, ranks, nbytes, 1.0) for nbytes in sizes]
    return [row._replace(seconds=predicted(on, row)[0]) for row in asked]


@pytest.mark.parametrize(
    ("nodes", "planted"),
    [
        (1, {"call": 3.0, "inside.rate": 0.6}),
        (2, {"network.rate": 0.6, "network.added": 10e-6}),
        (2, {"network.rate": 0.6, "network.each": 10e-6}),
    ],
)
def test_planted_constants_are_found_again(nodes: int, planted: dict[str, float]) -> None:
    start = two_links()
    rows = rows_on(
        changed(start, planted),
        nodes,
        3,
    )
    found = fit(
        start,
        rows,
        list(planted),
    )
    assert found.changes == pytest.approx(planted, rel=0.15)
    for row in rows:
        assert predicted(found.machine, row)[0] == pytest.approx(row.seconds, rel=0.1)


def test_one_disturbed_row_does_not_decide() -> None:
    start, planted = two_links(), {"call": 2.0, "inside.rate": 0.7}
    rows = rows_on(
        changed(start, planted),
        1,
        3,
    )
    rows[2] = rows[2]._replace(seconds=2 * rows[2].seconds)
    assert fit(start, rows, list(planted)).changes["inside.rate"] == pytest.approx(0.7, rel=0.3)


def test_a_constant_that_the_rows_do_not_tell_stays_near_the_sheets() -> None:
    start = two_links()
    large = rows_on(
        changed(start, {"inside.rate": 0.5}),
        1,
        3,
        SIZES[-3:],
    )
    found = fit(
        start,
        large,
        ["call", "inside.rate", "inside.latency"],
    )
    assert 0.5 < found.changes["inside.latency"] < 2


def test_one_node_tells_nothing_of_the_network() -> None:
    on = two_links()
    one, two = ([Measured(nodes, 3, 8, 1e-5)] for nodes in (1, 2))
    assert constants_of(on, one) == ["call", "inside.rate", "inside.latency", "switch.share"]
    assert "network.rate" in constants_of(on, two)
    assert "switch.share" not in constants_of(machine("dgx-h100"), one)


def test_the_choice_is_the_librarys_unless_the_row_says_another() -> None:
    on = two_links()
    assert library_algorithms(on, Measured(1, 3, 8, 1.0)) == ["ring", "nvls_tree"]
    assert library_algorithms(on, Measured(2, 1, 8, 1.0))[-1] == "multi_channel_tree"
    forced = Measured(
        2,
        3,
        1 << 28,
        1.0,
        algorithm="ring",
    )
    assert library_algorithms(on, forced) == ["multi_channel_ring"]
    assert predicted(on, forced)[0] >= predicted(on, forced._replace(algorithm=""))[0]


def test_a_row_takes_what_nccl_takes_where_its_gpus_are_known() -> None:
    h100 = machine("h100")
    mine = h100.model_copy(update={"name": "mine"})
    assert h100.inside is not None
    job = formulas.job(
        "all_reduce",
        2,
        8,
        "hopper",
        h100.inside.rate / 1e9,
        8,
        48,
    )
    able = ["ring", "tree", "nvls_tree"]
    for nbytes in SIZES:
        row = Measured(2, 8, nbytes, 1.0)
        choice = formulas.predictions(job, nbytes, able)[0]
        (way,) = ways(h100, row)
        assert way.algorithm.endswith(choice.algorithm)
        assert way.protocol == choice.protocol
        names = [each.algorithm for each in ways(mine, row)]
        assert names == library_algorithms(h100, row)
        fastest, _ = predicted(mine, row)
        taken, _ = predicted(h100, row)
        assert fastest <= taken


def test_a_row_that_names_its_algorithm_takes_that_one() -> None:
    row = Measured(
        2,
        8,
        1 << 28,
        1.0,
        algorithm="ring",
    )
    (forced,) = ways(machine("h100"), row)
    assert forced.algorithm == "multi_channel_ring"


def test_a_part_of_each_node_has_its_part_of_the_ports() -> None:
    h100 = machine("dgx-h100")
    part = part_of(
        h100,
        2,
        nodes=2,
    )
    assert part.ranks_per_node == 2
    assert part.ports == 2
    assert part_of(h100, 2, nodes=1) is h100
    with pytest.raises(ValueError, match="got 9, expected at most 8"):
        part_of(h100, 9, nodes=2)


def test_a_share_stays_a_share_and_a_call_without_a_cost_begins_with_one() -> None:
    most = changed(
        two_links(),
        {"switch.share": 7.0, "call": 2.0},
    )
    assert most.protocols[1].share == 1.0
    assert most.protocols[0].share == 1.0
    assert most.call == 2 * CALL
    assert changed(two_links(), {}) == two_links()


def test_fewer_rows_than_constants_are_refused() -> None:
    with pytest.raises(ValueError, match="got 1, expected as many or more"):
        fit(two_links(), [Measured(1, 3, 8, 1e-5)])


def log(path: Path, rows: list[Measured], program: str = "all_reduce_perf") -> Path:
    """Write the table that nccl-tests would print, with other times out of place."""
    lines = [f"# Collective test starting: {program}"]
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 268435456 step: 2(factor)"]
    lines += [f"#  Rank {r:2d} Group  0 Pid {r} on one device {r:2d} [0x07] X" for r in range(3)]
    lines += [
        "#       size   count   type   redop   root   time   algbw  busbw #wrong   time  algbw  busbw #wrong"
    ]
    lines += [
        "#        (B)  (elements)            (us)  (GB/s)  (GB/s)        (us)  (GB/s)  (GB/s)"
    ]
    for row in rows:
        us = row.seconds * 1e6
        lines.append(
            f"{row.bytes} {row.bytes // 4} float sum -1 {3 * us:.2f} 0.0 0.0 0 {us:.2f} 0.0 0.0 0"
        )
    lines += ["# Out of bounds values : 0 OK", ""]
    path.write_text("\n".join(lines))
    return path


def test_the_command_fits_a_log_and_prints_a_machine(capsys: Capture, tmp_path: Path) -> None:
    from collectives.machine import text

    (tmp_path / "sheet.yaml").write_text(text(two_links()))
    rows = rows_on(
        changed(two_links(), {"call": 2.0, "inside.rate": 0.5}),
        1,
        3,
    )
    printed = log(
        tmp_path / "all_reduce.log",
        rows,
    )
    code, out, err = run(
        capsys, "calibrate", "--from", str(printed), "--machine", str(tmp_path / "sheet.yaml")
    )
    assert code == 0, err
    assert "256 MiB on 1 x 3" in err
    (tmp_path / "mine.yaml").write_text(out)
    made = machine(str(tmp_path / "mine.yaml"))
    assert made.inside is not None
    assert made.inside.rate == pytest.approx(50e9, rel=0.15)
    assert "all_reduce.log" in made.source


def test_what_cannot_be_fitted_is_named(capsys: Capture, tmp_path: Path) -> None:
    gathers = log(
        tmp_path / "all_gather.log",
        rows_on(two_links(), 1, 3),
        "all_gather_perf",
    )
    code, _, err = run(capsys, "calibrate", "--from", str(gathers), "--machine", "dgx-h100")
    assert (code, err.count("\n")) == (2, 1)
    assert "got all_gather on 3 ranks, expected all_reduce of nccl-tests" in err
    code, _, err = run(capsys, "calibrate", "--from", str(gathers))
    assert (code, "expected both" in err) == (2, True)
    code, _, err = run(
        capsys, "calibrate", "--from", str(tmp_path / "none"), "--machine", "dgx-h100"
    )
    assert code == 1
