"""Topologies: rates worked out by hand, the paper's settings, and nodes that make no system."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.topology import PAPERS_SERVING, Node, Serving, Topology, TopologyError
from server_app.config.composing import ConfigError, compose


def chain(*max_transfer: float | None, arrival: float = 10.0) -> Topology:
    """Return device, edge and cloud, in a row."""
    device, edge = max_transfer
    return Topology(
        (
            Node("device", 1, ("edge",), arrival=arrival, max_transfer=device),
            Node("edge", 2, ("cloud",), max_transfer=edge),
            Node("cloud", 3),
        )
    )


# --- rates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "served"),
    [
        ((4, 1), (6, 3, 1)),
        ((4, 9), (6, 0, 4)),  # the edge may transfer more than it gets
        ((None, None), (0, 0, 10)),  # nothing keeps requests from the cloud
        ((0, 5), (10, 0, 0)),
    ],
)
def test_nodes_transfer_as_many_requests_as_they_may(
    limits: tuple[float | None, float | None], served: tuple[float, ...]
) -> None:
    assert chain(*limits).exit_rates == served


def test_figure_2_of_the_paper_two_layers_with_requests_in_both() -> None:
    topology = compose("strategy=depthfl fleet=cis_figure2").fleet.topology
    assert topology is not None
    rates = {name: (each.incoming, each.transfer) for name, each in topology.rates.items()}
    assert rates == {
        "device1": (10, 4),
        "device2": (6, 4),
        "device3": (2, 2),
        "server": (3 + 4 + 4 + 2, 0),
    }
    assert topology.exit_rates == (6 + 2 + 0, 13)
    assert topology.rates["device1"].forwarded == 0.4


def test_a_graph_divides_transfers_over_several_parents() -> None:
    topology = compose("strategy=depthfl fleet=cis_graph").fleet.topology
    assert topology is not None
    # device1 sends 4 to edge1; device2 sends 8: 6 to edge1 and 2 to edge2; device3 sends 1 on.
    assert topology.rates["edge1"].incoming == 2 + 4 + 6
    assert topology.rates["edge2"].incoming == 2
    assert topology.rates["cloud"].incoming == 5 + 2 + 1
    assert topology.exit_rates == (6 + 2 + 9, 7 + 0, 8)


@pytest.mark.parametrize("fleet", ["cis_7", "cis_17", "cis_7_biased", "cis_7_highly_biased"])
def test_the_paper_s_trees_have_its_seven_settings(fleet: str) -> None:
    config = compose(f"strategy=depthfl fleet={fleet} fleet.serving=80-15-5")
    assert config.fleet.topology is not None
    assert config.fleet.topology.exit_shares == pytest.approx((0.8, 0.15, 0.05), abs=1e-12)
    assert tuple(config.fleet.settings) == PAPERS_SERVING
    for setting, topology in config.fleet.settings.items():
        assert topology.exit_shares == pytest.approx(setting.shares, abs=1e-12)


def test_the_seven_node_tree_serves_80_15_5_exactly() -> None:
    topology = compose("strategy=depthfl fleet=cis_7 fleet.serving=80-15-5").fleet.topology
    assert topology is not None
    assert topology.exit_rates == (80.0, 15.0, 5.0)
    assert [node.max_transfer for node in topology.nodes] == [5, 5, 5, 5, 2.5, 2.5, 0]
    served = [topology.rates[node.name].serving for node in topology.nodes]
    assert served == [20, 20, 20, 20, 7.5, 7.5, 5]


def test_the_same_transfer_rates_written_out_come_to_the_same() -> None:
    nodes = (
        *(Node(f"device{n}", 1, ("edge",), arrival=25, max_transfer=5) for n in range(4)),
        Node("edge", 2, ("cloud",), max_transfer=5),
        Node("cloud", 3),
    )
    assert Topology(nodes).exit_rates == (80.0, 15.0, 5.0)


@given(
    arrivals=st.lists(st.floats(0.1, 100), min_size=1, max_size=5),
    parts=st.tuples(*[st.floats(0.1, 100)] * 3),
)
def test_any_setting_is_reached_where_requests_arrive_at_the_first_exit(
    arrivals: list[float], parts: tuple[float, float, float]
) -> None:
    devices = (Node(f"d{n}", 1, ("edge",), arrival=a) for n, a in enumerate(arrivals))
    topology = Topology((*devices, Node("edge", 2, ("cloud",)), Node("cloud", 3)))
    setting = Serving(parts)
    assert topology.serving(setting).exit_shares == pytest.approx(setting.shares)


@given(st.lists(st.floats(0, 50), min_size=3, max_size=3), st.floats(0, 50), st.floats(0, 50))
def test_every_request_is_served_once(arrivals: list[float], first: float, second: float) -> None:
    nodes = (
        Node("a", 1, ("c", "d"), (2, 1), arrivals[0] + 1, first),
        Node("b", 1, ("d",), arrival=arrivals[1], max_transfer=second),
        Node("c", 2, ("d",), arrival=arrivals[2], max_transfer=first),
        Node("d", 3),
    )
    reached = [node for node in nodes if node.name != "b" or node.arrival]
    topology = Topology(tuple(reached))
    assert sum(topology.exit_rates) == pytest.approx(sum(node.arrival for node in reached))
    assert all(rate >= -1e-9 for rate in topology.exit_rates)


# --- nodes that make no system -----------------------------------------------------------------

TREE = chain(4, 1).nodes


@pytest.mark.parametrize(
    ("place", "change", "told"),
    [
        (1, {"parents": ("clod",)}, "'edge' has the parent 'clod'.*device, edge, cloud"),
        (2, {"parents": ("device",)}, "circle: .*device -> edge -> cloud|circle: "),
        (1, {"parents": ("edge",)}, "circle: edge -> edge"),
        (0, {"exit": 2}, "'device' has exit 2, but its parent 'edge' has exit 2"),
        (2, {"exit": 1}, "'edge' has exit 2, but its parent 'cloud' has exit 1: expected a later"),
        (0, {"arrival": -1}, "'device' has arrival -1"),
        (1, {"max_transfer": -2}, "'edge' has max_transfer -2"),
        (1, {"max_transfer": float("nan")}, "'edge' has max_transfer nan"),
        (0, {"arrival": 0}, "no request reaches node 'device'"),
        (0, {"exit": 0}, "'device' has exit 0"),
        (1, {"name": "device"}, "two nodes have the name 'device'"),
        *((0, {"name": name}, "a node has the name") for name in ("", "a/b", "..", "a\nb", "é")),
        (0, {"shares": (1, 2)}, "'device' has shares"),
        (0, {"shares": (float("nan"),)}, "'device' has shares"),
        (0, {"parents": ("edge", "edge")}, "'device' has a parent twice"),
    ],
)
def test_an_error_names_the_node(place: int, change: dict[str, object], told: str) -> None:
    nodes = [replace(n, **change) if k == place else n for k, n in enumerate(TREE)]  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=told):
        Topology(tuple(nodes))


def test_a_node_that_no_request_reaches_is_named() -> None:
    with pytest.raises(TopologyError, match="no request reaches node 'idle'"):
        Topology((*TREE, Node("idle", 2, ("cloud",))))


@pytest.mark.parametrize("text", ["80-15", "80-15-5-0", "a-b-c", "", "0-0-0", "80--15", "nan-1-1"])
def test_a_serving_setting_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="serving is"):
        compose(f"strategy=depthfl fleet=cis_7 fleet.serving='{text}'")


def test_a_setting_that_the_nodes_cannot_have_is_refused_with_what_they_come_to() -> None:
    direct = Topology(
        (Node("a", 1, ("c",), arrival=1), Node("b", 2, ("c",), arrival=1), Node("c", 3))
    )
    with pytest.raises(
        TopologyError, match=r"serving is 80-15-5, but these nodes come to 40-.*max_t"
    ):
        direct.serving(Serving.read("80-15-5"))


def test_a_setting_may_not_exceed_what_a_node_may_transfer() -> None:
    with pytest.raises(TopologyError, match=r"'device' would transfer 9\.5, more than"):
        chain(4, 1).serving(Serving.read("5-15-80"))
    assert list(map(str, chain(4, 1).papers_settings())) == ["80-15-5", "60-30-10"]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("fleet=even fleet.serving=80-15-5", "no nodes: choose one that has, such as fleet=cis_7"),
        ("fleet=cis_7 fleet.clients=6 clients_per_round=6", "7 nodes, but 6 clients"),
    ],
)
def test_a_fleet_and_its_nodes_must_fit(overrides: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        compose(f"strategy=depthfl {overrides}")
