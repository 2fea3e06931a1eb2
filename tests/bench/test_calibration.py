"""A machine from a measurement: the fit on made-up links, and the whole way on real ranks."""

import pytest

from collectives.bench.calibration import deviations, link, machine_of
from collectives.machine import Link, machine, text
from command import Capture, run


def rows(latency, overhead, rate, sizes=(8, 1000, 50_000, 1_000_000)):
    return [
        {"bytes": m, "one_way": latency + overhead + m / rate, "each": overhead + m / rate} for m in sizes
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("latency", "overhead", "rate"), [(5e-6, 1e-6, 1e9), (0, 3e-6, 25e9), (1e-3, 0, 1e7)]
)
def test_the_fit_finds_the_link_that_was_measured(latency, overhead, rate):
    fitted = link(rows(latency, overhead, rate))
    assert fitted.latency == pytest.approx(latency, abs=1e-12)
    assert fitted.overhead == pytest.approx(overhead, abs=1e-12)
    assert fitted.rate == pytest.approx(rate)
    assert all(abs(row["off"]) < 1e-9 for row in deviations(rows(latency, overhead, rate), fitted))


def test_one_disturbed_size_does_not_decide():
    made = rows(5e-6, 1e-6, 1e9, sizes=(8, 64, 512, 4096, 32_768, 1 << 20))
    made[1]["one_way"] *= 20
    assert link(made).latency == pytest.approx(5e-6, rel=0.02)


def test_a_line_that_would_start_below_zero_starts_at_zero():
    fitted = link(
        [
            {"bytes": m, "one_way": m**1.2 * 1e-9, "each": m**1.2 * 1e-9}
            for m in (1000, 10_000, 100_000)
        ]
    )
    assert fitted.overhead >= 0
    assert fitted.latency >= 0
    assert fitted.rate > 0


def test_one_size_is_not_enough():
    with pytest.raises(ValueError, match="two sizes of messages or more"):
        link(rows(1e-6, 0, 1e9, sizes=(8,)))


def test_what_is_printed_is_a_machine(tmp_path):
    made = machine_of(rows(5e-6, 1e-6, 1e9), "here", "loopback")
    (tmp_path / "here.yaml").write_text(text(made))
    again = machine(str(tmp_path / "here.yaml"))
    assert again.network == Link(latency=5e-6, overhead=1e-6, rate=1e9)
    assert again.name == "here"
    assert again.ranks_per_node == 1
    assert "loopback" in again.source


@pytest.mark.integration
def test_the_command_on_real_ranks(capsys: Capture, tmp_path):
    code, out, err = run(
        capsys, "calibrate", "--repetitions", "3", "--ranks", "3", "--name", "three"
    )
    assert code == 0
    (tmp_path / "three.yaml").write_text(out)
    assert machine(str(tmp_path / "three.yaml")).name == "three"
    assert "2 MiB" in err


def test_a_burst_that_took_less_than_nothing_is_no_time(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    made = rows(5e-6, 1e-6, 1e9)
    made[0]["each"] = -46.2e-6
    monkeypatch.setattr("collectives.bench.calibration.measured", lambda *_: made)
    code, out, err = run(capsys, "calibrate", "--repetitions", "3")
    assert code == 0
    assert "latency" in out
    assert "-46" not in err
    assert " unknown each in a burst" in err
    assert (
        "Do not trust the overhead: for messages of 8 B a burst took no longer than one of them"
        in err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1"], "--ranks: got '1', expected a whole number from 2"),
        (["--where", "moon"], "unknown where 'moon'; known are loopback"),
    ],
)
def test_wrong_input(capsys: Capture, arguments, message):
    code, out, err = run(capsys, "calibrate", *arguments)
    assert code == 2
    assert out == ""
    assert message in err
