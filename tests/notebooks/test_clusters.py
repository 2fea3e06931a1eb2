"""Published all-reduces: which are held out, and what every row says of itself."""

from collectives_book.measured_machines.public import held_out, public_rows


def test_the_held_out_rows_are_those_of_the_rule():
    rows = public_rows()
    drawn = rows[rows.use != "known"]
    assert len(drawn) == 95
    for _, generation in drawn.groupby("generation"):
        counts = generation.cluster.value_counts()
        marked = {*generation[generation.use == "held out"].cluster}
        assert marked == held_out([*counts.index], [*counts])
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
