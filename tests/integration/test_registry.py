"""Three nodes and their registries: registrations, routes, a drain, and a node that is killed
(NS-13, NS-14, NS-17, NS-21)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronos.client import AsyncClient, Client
from tests.chaos.fleet import Fleet
from tests.harness.broker import Broker
from tests.harness.service import Service
from tests.integration.flow import SHARDS, KafkaFlow

pytestmark = pytest.mark.kafka


SOON: dict[str, object] = {"chronos.admin.cluster.registry.REGISTER_EVERY_MS": 2_000}


@pytest.fixture
def fleet(broker: Broker, tmp_path: Path) -> Iterator[Fleet]:
    """Three nodes, not started yet; killed nodes leave the registries soon."""
    settings = {
        **KafkaFlow(broker, 1).settings(),
        "delivery.transaction_timeout": "4s",
    }
    with Fleet(
        tmp_path,
        bootstrap=broker.bootstrap,
        zookeeper=None,
        shards=SHARDS,
        settings=settings,
        constants=SOON,
    ) as nodes:
        yield nodes


def routes(node: Service) -> dict[int, Any]:
    """The routes by shard, as the registry of a node has them; empty: none are registered."""
    status, answer = node.ask("GET", "/v1/registry/routes")
    return {route["shard"]: route for route in answer["routes"]} if status == 200 else {}


def are_known(fleet: Fleet, names: set[str]) -> bool:
    """Return whether the registry of each of these nodes routes every shard to the master and to
    all other ones of these nodes."""
    masters = fleet.masters()
    expected = {shard: (master, sorted(names - {master})) for shard, master in masters.items()}

    def known(name: str) -> dict[int, tuple[str | None, list[str]]]:
        return {
            shard: (
                route["master"] and route["master"]["node"],
                sorted(each["node"] for each in route["followers"]),
            )
            for shard, route in routes(fleet.nodes[name]).items()
        }

    return len(masters) == SHARDS and all(known(name) == expected for name in names)


def test_every_registry_routes_to_every_node_until_it_is_drained_stopped_or_killed(
    fleet: Fleet,
) -> None:
    """Registries exchange nothing: a node registers with each of them, also with one that was
    started again."""
    fleet.start()
    nodes, everyone = fleet.nodes, set(fleet.nodes)
    nodes["n1"].wait_until(
        lambda: are_known(fleet, everyone), "be known with all nodes to all registries"
    )
    assert routes(nodes["n1"])[0]["master"]["address"] in {node.url for node in nodes.values()}
    # A drained node registers without the permission to write, everywhere.
    nodes["n1"].post_until_done("/v1/nodes/n3/drain")

    def writable(name: str) -> list[bool]:
        return [
            each["writable"]
            for node in nodes.values()
            for each in node.get("/v1/registry/nodes")["nodes"]
            if each["node"] == name
        ]

    nodes["n1"].wait_until(lambda: writable("n3") == [False] * 3, "be told of the drain")
    nodes["n1"].wait_until(
        lambda: "n3" not in fleet.masters().values(), "hand over the shards of the drained node"
    )
    assert nodes["n2"].ask("POST", "/v1/nodes/n3/undrain")[0] == 202
    nodes["n1"].wait_until(lambda: writable("n3") == [True] * 3, "be told of the end of the drain")
    # A node that stops leaves at once, one that is killed after its time; the masters change at
    # once.
    nodes["n3"].stop()
    assert "n3" not in {each["node"] for each in nodes["n1"].get("/v1/registry/nodes")["nodes"]}
    nodes["n2"].kill()
    nodes["n1"].wait_until(
        lambda: are_known(fleet, {"n1"}), "route to the last node only", timeout_s=60
    )
    # A registry that starts empty is filled again.
    nodes["n2"].start()
    nodes["n2"].wait_until(lambda: are_known(fleet, {"n1", "n2"}), "know both nodes", timeout_s=60)


def test_the_configuration_is_the_same_everywhere_and_survives_a_restart_of_all_nodes(
    fleet: Fleet,
) -> None:
    """One after the other, as in an upgrade, and all at once."""
    fleet.start()
    nodes = list(fleet.nodes.values())
    path = "/v1/registry/config/shop/currency"

    def is_everywhere() -> bool:
        return all(node.ask("GET", path)[1].get("value") == "EUR" for node in nodes)

    nodes[0].wait_until(
        lambda: nodes[0].ask("PUT", path, {"value": "EUR"})[0] == 200, "set the value", every_s=0.5
    )
    nodes[0].wait_until(is_everywhere, "have the value everywhere")
    for node in nodes:
        node.stop()
        node.start()
    nodes[0].wait_until(is_everywhere, "have the value after a rolling restart")
    for node in nodes:
        node.stop()
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_ready()
    nodes[0].wait_until(is_everywhere, "have the value after a restart of all")
    nodes[0].wait_until(
        lambda: nodes[1].ask("DELETE", path)[0] in (200, 404), "delete the value", every_s=0.5
    )
    nodes[0].wait_until(
        lambda: all(node.ask("GET", path)[0] == 404 for node in nodes), "have it deleted everywhere"
    )


def test_a_client_goes_on_when_the_node_whose_registry_it_used_is_killed(fleet: Fleet) -> None:
    """With calls that may be repeated and such that may not, blocking and for asyncio, and also
    when one node is left."""
    fleet.start()
    nodes, everyone = fleet.nodes, set(fleet.nodes)
    nodes["n1"].wait_until(
        lambda: are_known(fleet, everyone), "be known with all nodes to all registries"
    )
    # The third node is found by the registry of the first one.
    given = [nodes["n1"].url, nodes["n2"].url]

    async def goes_on() -> None:
        async with AsyncClient(given) as client:
            with Client(given) as blocking:
                for killed in (None, "n1", "n2"):
                    if killed is not None:
                        nodes[killed].kill()
                    names = [f"{killed}-{number}" for number in range(8)]
                    second = blocking.schedule("t", "v", delay="1h")
                    for name in names:
                        await client.schedule("t", name, id=name, delay="1h")
                    first = await client.schedule("t", "v", delay="1h")
                    assert first.id != second.id
                    if killed is not None:
                        fleet.wait_led(without=killed)
                    for name in [first.id, second.id, *names]:
                        assert blocking.get(name).state == "pending"
                        assert await client.cancel(name)
                assert client.server == blocking.server == nodes["n3"].url

    asyncio.run(goes_on())
