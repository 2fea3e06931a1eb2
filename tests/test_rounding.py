"""Errors of sums, rounding to every dtype and codec, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from collectives.algorithms import build
from collectives.codecs import CODECS
from collectives.rounding import measure, rounded, samples
from command import Capture, run

RANKS = (16, 32, 64, 128, 256, 512, 1024)


def rms(name: str, p: int, codec: str | None = None) -> float:
    """The RMS error of bf16 sums of normal data."""
    data = list(samples("normal", p, 5))
    return measure(build("all_reduce", name, p), "bfloat16", data, codec).rms


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_values_are_rounded_as_torch_does(dtype: str) -> None:
    values = np.concatenate(
        [
            np.random.default_rng(1).normal(size=5000) * 10.0 ** np.arange(-5, 5).repeat(500),
            [0, -0.0],
        ]
    )
    wide = values if dtype == "float64" else values.astype(np.float32)
    expected = torch.from_numpy(wide).to(getattr(torch, dtype)).double().numpy()
    assert rounded(wide, dtype).astype(np.float64).tobytes() == expected.tobytes()
    assert rounded(np.array([np.inf, -np.inf]), dtype).tolist() == [np.inf, -np.inf]
    assert np.isnan(rounded(np.array([np.nan]), dtype)).all()


def test_a_known_error_is_found() -> None:
    """256 + 1 is 256 in bf16, so a tree loses a 1; one rounding of 256 + 3 gives 260."""
    data = [np.array([[256.0], [1.0], [1.0], [1.0]])]
    tree = measure(build("reduce", "binomial", 4), "bfloat16", data)
    once = measure(build("all_reduce", "one_shot", 4), "bfloat16", data)
    assert tree.worst == pytest.approx(1 / 259), "256 + 1 = 256, and 1 + 1 = 2: 258"
    assert once.rms == once.worst == pytest.approx(1 / 259)
    assert (tree.depth, once.depth) == (2, 1)


def test_errors_stay_within_their_bound() -> None:
    for name in ("ring", "recursive_doubling", "two_tree"):
        (data,) = samples("positive", 33, 1)
        found = measure(build("all_reduce", name, 33), "float16", [data])
        largest = np.abs(rounded(data, "float16")).sum(axis=0).max()
        scale = np.sqrt((rounded(data, "float16").astype(float).sum(axis=0) ** 2).mean())
        assert 0 < found.worst <= found.bound * largest / scale


@pytest.mark.integration
def test_a_ring_s_error_grows_with_the_root_of_p_and_doubling_s_with_its_logarithm() -> None:
    """On data of mean zero, relative to the sums, which grow with the root of p themselves."""
    ring = [rms("ring", p) for p in RANKS]
    slope = np.polyfit(np.log(RANKS), np.log(ring), 1)[0]
    assert abs(slope - 0.5) <= 0.05
    doubling = [rms("recursive_doubling", p) ** 2 for p in RANKS]
    assert np.corrcoef(np.log2(RANKS), doubling)[0, 1] ** 2 >= 0.98
    assert [round(100 * rms(name, 64), 2) for name in ("one_shot", "ring")] == [
        pytest.approx(0.17, abs=0.02),
        pytest.approx(0.97, abs=0.1),
    ]


def test_sums_that_travel_in_float32_are_rounded_once() -> None:
    wide = rms("ring", 256, "float32")
    assert wide == pytest.approx(rms("one_shot", 256), rel=0.02)
    assert wide < rms("recursive_doubling", 256) < rms("ring", 256)


def test_coarser_messages_are_less_exact_and_a_chain_that_encodes_often_more_so() -> None:
    errors = [rms("two_shot", 64, codec) for codec in ("float32", "mxint8", "mxfp8", "mxfp4")]
    assert errors == sorted(errors)
    assert rms("ring", 64, "mxint8") > 3 * rms("two_shot", 64, "mxint8")
    assert rms("ring", 64, "bfloat16") == rms("ring", 64)


def test_a_bound_is_stated_for_the_codec_float32_only() -> None:
    data = list(samples("normal", 8, 1))
    ring = build("all_reduce", "ring", 8)
    found = {codec: measure(ring, "float32", data, codec).bound for codec in CODECS}
    assert [codec for codec, bound in found.items() if bound is not None] == ["float32"]
    assert found["float32"] == pytest.approx(8 * 2.0**-24, rel=1e-6)


def test_a_better_dtype_is_more_exact() -> None:
    ring, data = build("all_reduce", "ring", 16), list(samples("normal", 16, 2))
    errors = [
        measure(ring, dtype, data).rms for dtype in ("bfloat16", "float16", "float32", "float64")
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.3)


@pytest.mark.parametrize(
    ("collective", "name", "dtype", "shape", "said"),
    [
        (
            "all_gather",
            "ring",
            "bfloat16",
            (4, 3),
            "errors of sums: got all_gather, expected one of all_reduce",
        ),
        ("all_reduce", "ring", "int8", (4, 3), "unknown dtype 'int8'"),
        (
            "all_reduce",
            "ring",
            "float32",
            (3, 3),
            r"data of 4 ranks: got shape \(3, 3\), expected \(4, elements\)",
        ),
        ("all_reduce", "ring", "float32", (4, 0), r"data of 4 ranks: got shape \(4, 0\)"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    collective: str, name: str, dtype: str, shape: tuple[int, int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        measure(build(collective, name, 4), dtype, [np.ones(shape)])


@pytest.mark.parametrize(
    ("codec", "dtype", "said"),
    [
        ("mxint8", "float64", "dtype of a sum with the codec mxint8: got float64"),
        ("int8", "float32", "unknown codec 'int8'"),
    ],
)
def test_a_codec_that_does_not_fit_is_refused(codec: str, dtype: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        measure(build("all_reduce", "ring", 4), dtype, [np.ones((4, 3))], codec)


def test_the_command_prints_a_row_for_each_algorithm(capsys: Capture) -> None:
    code, out, _ = run(capsys, "error", "all_reduce", "-p", "5", "--seeds", "2")
    head, *lines = out.splitlines()
    assert code == 0
    assert head.split() == ["algorithm", "ranks", "dtype", "depth", "bound", "rms", "worst"]
    assert {"ring", "two_tree", "one_shot"} <= {line.split()[0] for line in lines}
    row = json.loads(
        run(capsys, "error", "all_reduce", "ring", "-p", "8", "--dtype", "fp16", "--json")[1]
    )
    assert {
        "algorithm",
        "ranks",
        "dtype",
        "depth",
        "bound",
        "rms",
        "rms_low",
        "rms_high",
        "worst",
    } <= set(row)
    assert (row["depth"], row["dtype"]) == (7, "float16")
    assert row["rms_low"] <= row["rms"] <= row["rms_high"] <= row["worst"]


def test_data_come_from_a_file_that_is_not_executed(capsys: Capture, tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", np.arange(12.0).reshape(4, 3))
    code, out, _ = run(
        capsys, "error", "all_reduce", "ring", "-p", "4", "--data", f"{tmp_path}/mine.npy", "--json"
    )
    assert (code, json.loads(out)["rms"]) == (0, 0.0)
    np.save(tmp_path / "objects.npy", np.array([[print]], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    for name in ("objects", "text", "absent"):
        code, out, err = run(
            capsys, "error", "all_reduce", "ring", "-p", "1", "--data", f"{tmp_path}/{name}.npy"
        )
        assert (code, out) == (2, "")
        assert f"{name}.npy: got" in err
        assert "expected an array of numbers" in err
    for name, value in (("zeros", 0.0), ("not-a-number", np.nan)):
        np.save(tmp_path / f"{name}.npy", np.full((4, 3), value))
        code, out, err = run(
            capsys, "error", "all_reduce", "ring", "-p", "4", "--data", f"{tmp_path}/{name}.npy"
        )
        assert (code, out, "RMS of the exact sums: got" in err) == (2, "", True)
    code, _, err = run(capsys, "error", "all_reduce", "ring", "--data", "uniform")
    assert (code, "normal, positive, and NAME.npy" in err) == (2, True)
    assert run(capsys, "error", "all_gather", "ring")[0] == 2
