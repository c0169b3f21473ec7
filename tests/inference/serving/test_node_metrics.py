"""A node's metrics count its requests, and stay few."""

from __future__ import annotations

from inference.serving.node_metrics import MOST_ANSWERERS, Metrics


def test_parents_have_one_type_line_and_their_names_are_escaped() -> None:
    lines = Metrics().text({}, {"one": True, 'a"b\n': False}).splitlines()
    assert lines.count("# TYPE nestfl_parent_up gauge") == 1
    assert 'nestfl_parent_up{parent="one"} 1' in lines
    assert r'nestfl_parent_up{parent="a\"b\n"} 0' in lines


def test_names_that_never_end_are_counted_as_others() -> None:
    metrics = Metrics()
    for number in range(2 * MOST_ANSWERERS):
        metrics.answered([f"node{number}"], [1])
    assert len(metrics.answers) == MOST_ANSWERERS + 1
    assert metrics.answers["others", 0] == MOST_ANSWERERS
    metrics.answered(["node0"], [1])
    assert metrics.answers["node0", 1] == 2
