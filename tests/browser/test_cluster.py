"""The cluster view of the console, on two nodes and a real Kafka: roles, progress, and what an
operator may do."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import faults, opened
from tests.chaos.fleet import Fleet
from tests.harness.broker import Broker

pytestmark = pytest.mark.browser

SHARDS = 4


@pytest.fixture(scope="module")
def fleet(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two nodes, of which each is master of a shard."""
    prefix = f"console.{uuid.uuid4().hex[:8]}"
    topics = ("delay", "progress", "rejected", "dead_letter", "cluster")
    settings: dict[str, object] = {
        "cluster": prefix,
        **{f"topics.{name}": f"{prefix}.{name}" for name in topics},
    }
    with Fleet(
        tmp_path_factory.mktemp("cluster"),
        bootstrap=broker.bootstrap,
        zookeeper=None,
        count=2,
        shards=SHARDS,
        settings=settings,
    ) as nodes:
        yield nodes.start()


def test_an_operator_transfers_a_shard_and_drains_a_node_after_confirming_it(
    page: Page, fleet: Fleet
) -> None:
    """And sees who is master, how far each replica is, and why the roles changed."""
    opened(page, fleet.nodes["n1"], "/ui/cluster")
    expect(page.locator("#health")).to_have_text("2 of 2 nodes ready")
    nodes, shards = (page.get_by_role("table", name=name) for name in ("Nodes", "Shards"))
    expect(nodes.get_by_role("row")).to_have_count(3)
    expect(shards.get_by_role("row")).to_have_count(SHARDS + 1)
    assert faults(page) == []
    changes = page.get_by_role("table", name="Changes of roles")
    expect(changes.get_by_role("row").nth(1)).to_be_visible()

    master = fleet.wait_led()[0]
    other = "n2" if master == "n1" else "n1"
    page.get_by_role("button", name="Transfer shard 0").click()
    dialog = page.get_by_role("dialog", name="Transfer shard 0?")
    expect(dialog).to_contain_text(f"{master} is its master")
    dialog.get_by_role("button", name="Back").click()
    assert fleet.wait_led()[0] == master
    page.get_by_role("button", name="Transfer shard 0").click()
    expect(dialog.get_by_label("New master")).to_have_value(other)
    dialog.get_by_role("button", name="Transfer shard 0").click()
    expect(page.get_by_text("Done: transfer of shard 0")).to_be_visible()
    expect(shards.get_by_role("row").nth(1).get_by_role("cell").nth(1)).to_contain_text(other)

    page.get_by_role("button", name=f"Drain {other}", exact=True).click()
    dialog = page.get_by_role("dialog", name=f"Drain {other}?")
    dialog.get_by_role("button", name=re.compile(r"Hand over \d shard")).click()
    row = nodes.get_by_role("row").filter(has_text=other)
    expect(row).to_contain_text("drained")
    expect(row.get_by_role("link", name="shard")).to_have_count(0)
    page.get_by_role("button", name=f"Undrain {other}").click()
    page.get_by_role("button", name=f"End the drain of {other}").click()
    expect(row).to_contain_text("ready")


def test_a_node_that_is_away_is_named_with_what_to_do(page: Page, fleet: Fleet) -> None:
    """The last test of the module."""
    opened(page, fleet.nodes["n1"], "/ui/cluster")
    fleet.nodes["n2"].stop()
    expect(page.locator("#health")).to_have_text("1 of 2 nodes ready")
    banner = page.get_by_role("region", name="What needs attention")
    expect(banner).to_contain_text("node n2 holds shards 0 to 3, and has been away for")
    expect(banner.get_by_role("link", name="Cluster").first).to_be_visible()
    page.get_by_role("button", name="Forget n2").click()
    dialog = page.get_by_role("dialog", name="Forget n2?")
    expect(dialog).to_contain_text("holds replicas of 4 shards")
    dialog.get_by_role("button", name="Forget n2 and 4 replicas").click()
    expect(page.get_by_text("Done: forgetting n2")).to_be_visible()
    expect(page.locator("#health")).to_have_text("ready")
