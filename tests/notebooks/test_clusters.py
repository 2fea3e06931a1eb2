"""Published all-reduces: which are held out, and what every row says of itself."""

import numpy as np
import pandas as pd
import pytest

from collectives.machine import machine, presets
from collectives_book.measured_machines.clusters import compared, median_errors, predict
from collectives_book.measured_machines.presets import RECIPES, rows_to_fit, sheet_machine
from collectives_book.measured_machines.public import held_out, public_rows


def test_the_held_out_rows_are_those_of_the_rule():
    rows = public_rows()
    drawn = rows[rows.use != "known"]
    assert len(drawn) == 95
    for _, generation in drawn.groupby("generation"):
        counts = generation.cluster.value_counts()
        held = generation[generation.use == "held out"]
        marked = set(held.cluster)
        clusters = counts.index.tolist()
        assert marked == held_out(clusters, counts.tolist())
    assert (drawn.use == "held out").sum() == 36


def test_a_cluster_is_held_out_whole_and_every_row_has_a_source():
    rows = public_rows()
    assert (rows.groupby("cluster").use.nunique() == 1).all()
    assert rows.source.str.len().min() > 5
    assert (rows.us > 0).all()
    assert not rows.duplicated(["cluster", "gpus_per_node", "bytes"]).any()


def test_a_generation_keeps_a_cluster_for_the_fit():
    assert held_out(["a", "b"], [1, 99]) != {"a", "b"}
    assert len(held_out(["a", "b", "c"], [1, 1, 1])) == 1


def test_the_committed_predictions_are_of_these_rows_and_are_made_again():
    rows, known = public_rows(), compared()
    same = ["cluster", "gpus_per_node", "bytes", "us", "use"]
    pd.testing.assert_frame_equal(
        rows[same],
        known[same],
    )
    some = rows[(rows.nodes == 1) & (rows.bytes <= 1 << 20)].iloc[::9]
    again = predict(some)
    columns = ["simulated", "formula"]
    assert len(some) >= 2
    assert again[columns].to_numpy() == pytest.approx(known.loc[some.index, columns].to_numpy())


def test_a_fit_sees_no_row_that_is_held_out():
    rows = public_rows()
    held = set(rows[rows.use == "held out"].cluster)
    for recipe in RECIPES.values():
        fitted = rows_to_fit(recipe.rows)
        assert held.isdisjoint(fitted.cluster)


@pytest.mark.parametrize("name", RECIPES)
def test_a_preset_keeps_what_its_recipe_does_not_fit(name):
    sheet, preset = sheet_machine(name, RECIPES[name].sheet), machine(name)
    assert name in presets()
    assert (preset.ranks_per_node, preset.ports) == (sheet.ranks_per_node, sheet.ports)
    assert [of.name for of in preset.protocols] == [of.name for of in sheet.protocols]
    startups = [of.startup for of in sheet.protocols]
    assert [of.startup for of in preset.protocols] == pytest.approx(startups)
    assert preset.inside.rate <= 1.05 * sheet.inside.rate
    assert preset.network.rate <= 1.05 * sheet.network.rate


def test_a_line_is_judged_by_the_rows_that_it_does_not_go_through():
    sizes = [8, 1 << 20, 1 << 22, 1 << 30]
    rows = (
        public_rows()
        .iloc[:4]
        .assign(
            cluster="mine",
            machine="h100",
            nodes=1,
            bytes=sizes,
        )
    )
    rows = rows.assign(us=[10 + size / 1e5 for size in sizes], algorithm="ring")
    line = predict(rows).line
    assert np.isnan(line.iloc[[0, 3]]).all()
    assert line.iloc[1:3].to_numpy() == pytest.approx(rows.us.iloc[1:3].to_numpy(), rel=1e-3)


def test_errors_are_by_class_of_size_and_without_their_sign():
    rows = pd.DataFrame(
        {"bytes": [8, 8, 1 << 24], "us": [10.0, 10.0, 10.0]},
    )
    rows = rows.assign(
        simulated=[5.0, 12.0, 20.0],
        formula=10.0,
        line=np.nan,
    )
    found = median_errors(rows)
    assert found.simulated.tolist() == pytest.approx([0.35, 1.0])
    assert found.rows.tolist() == [2, 1]
