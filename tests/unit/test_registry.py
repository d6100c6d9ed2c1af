"""The registry against RocketMQ's rules for its NameServer.

NS-06, NS-07, NS-08 and NS-12: `test_a_registration_replaces_everything_known_of_its_node`,
`test_a_registry_agrees_with_the_model` NS-09, NS-17:
`test_topics_are_those_of_masters_and_change_with_a_new_state_or_master`,
`test_the_last_node_takes_its_shards_cluster_and_topics_with_it` NS-11:
`test_a_follower_is_told_the_live_master` NS-14, NS-15:
`test_a_node_expires_strictly_after_its_time_and_only_once` NS-18, NS-20:
`test_clients_do_not_write_to_a_node_that_is_drained`,
`test_configuration_has_namespaces_and_a_bound` NS-19: `test_an_answer_is_a_copy`,
`test_a_topic_without_nodes_has_no_route` NS-22: `test_an_older_state_never_displaces_a_newer_one`,
`test_an_address_belongs_to_one_node`, `test_the_greater_epoch_wins_a_shard`"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.core.cluster.registry import configuration, registry
from chronos.core.cluster.registry.configuration import CONFIGURATION_BYTES_MAX, configured
from chronos.core.cluster.registry.registry import EXPIRE_AFTER_MS, Registry
from chronos.core.cluster.registry.values import (
    READ,
    WRITE,
    ClusterSummary,
    Endpoint,
    Full,
    Holding,
    Registration,
    TopicConfig,
)
from tests.unit.settings import examples

TOPICS = {
    "delay": TopicConfig(partitions=4, permissions=READ | WRITE),
    "progress": TopicConfig(partitions=4, permissions=READ),
}
NOW_MS = 1_000_000


def holdings(text: str) -> dict[int, Holding]:
    """`0*5 1`: master of shard 0 with role epoch 5, and follower of shard 1 with role epoch 1."""
    found = {}
    for word in text.split():
        shard, _, epoch = word.partition("*")
        found[int(shard)] = Holding(master=bool(epoch), epoch=int(epoch or 1))
    return found


def node(name: str, shards: str = "", state_version: int = 1, **fields: Any) -> Registration:
    """The registration of a node of cluster `c`."""
    given: dict[str, Any] = {
        "cluster": "c",
        "node": name,
        "instance": f"{name}-disk",
        "address": f"http://{name}",
        "version": "1",
        "state_version": state_version,
        "shards": holdings(shards),
        "topics": TOPICS,
    }
    return Registration(**(given | fields))


def with_nodes(*registrations: Registration) -> Registry:
    """A registry with these registrations, made at NOW_MS in this order."""
    found = Registry()
    for registration in registrations:
        assert found.register(registration, NOW_MS).accepted
    return found


def served(found: Registry, topic: str = "delay") -> dict[int, tuple[str | None, list[str]]]:
    """By shard: the master and the followers of the routes."""
    routes = found.routes("c", topic)
    return {
        each.shard: (
            None if each.master is None else each.master.node,
            [follower.node for follower in each.followers],
        )
        for each in (() if routes is None else routes.routes)
    }


def test_a_registration_replaces_everything_known_of_its_node() -> None:
    """Shards that it no longer names are gone, and so is its old address."""
    found = with_nodes(node("a", "0*1 1"), node("b", "0 1*1"))
    assert served(found) == {0: ("a", ["b"]), 1: ("b", ["a"])}
    changed = node("a", "0", 2, address="http://other")
    found.register(changed, NOW_MS + 5)
    assert served(found) == {0: (None, ["a", "b"]), 1: ("b", [])}
    (first, _) = found.nodes("c")
    assert (first.registration, first.registered_ms) == (changed, NOW_MS + 5)
    # Another node may have the address now.
    assert found.register(node("d", "", 1, address="http://a"), NOW_MS).accepted
    assert [each.registration.node for each in found.nodes()] == ["a", "b", "d"]


def test_topics_are_those_of_masters_and_change_with_a_new_state_or_master() -> None:
    """A follower registers none; a master's are taken with a new state, when the shard had no such
    master, and as a whole."""
    assert with_nodes(node("a", "0 1")).topics("c") == {}
    found = with_nodes(node("a", "0*1"))
    assert found.topics("c") == TOPICS
    found.register(node("a", "0*1", topics={}), NOW_MS)
    assert found.topics("c") == TOPICS
    found.register(node("a", "0*1", 2, topics=None), NOW_MS)
    assert found.topics("c") == TOPICS
    found.register(node("a", "0*1", 3, topics={"delay": TOPICS["delay"]}), NOW_MS)
    assert [*found.topics("c")] == ["delay"]
    found.register(node("b", "0*2"), NOW_MS)
    assert found.topics("c") == TOPICS


def test_the_last_node_takes_its_shards_cluster_and_topics_with_it() -> None:
    found = with_nodes(node("a", "0*1 1"), node("b", "0"), replace(node("x", "0*1"), cluster="d"))
    assert found.unregister("c", "a", 1) == "removed"
    assert served(found) == {0: (None, ["b"])}
    assert found.clusters()["c"].shards == (0,)
    assert found.unregister("c", "b", 1) == "removed"
    assert [*found.clusters()] == ["d"]
    assert found.topics("c") == {}
    assert found.topics("d") == TOPICS
    assert found.unregister("c", "b", 1) == "unknown"


def test_a_follower_is_told_the_live_master() -> None:
    """By the answer to its registration; a master is told nothing of its own shards."""
    found = Registry()
    assert found.register(node("a", "0 1"), NOW_MS).masters == {}
    answer = found.register(node("b", "0*1 1"), NOW_MS)
    assert answer.masters == {}
    assert found.register(node("a", "0 1"), NOW_MS).masters == {
        0: Endpoint(node="b", address="http://b")
    }
    found.expire(NOW_MS + EXPIRE_AFTER_MS + 1)
    assert found.register(node("a", "0 1"), NOW_MS).masters == {}


def test_a_node_expires_strictly_after_its_time_and_only_once() -> None:
    """After 120 s by default, or after its own time; a registration without news counts."""
    found = with_nodes(node("a", "0*1"), node("b", "0", expire_after_ms=5_000))
    assert found.expire(NOW_MS + 5_000) == []
    assert [each.registration.node for each in found.expire(NOW_MS + 5_001)] == ["b"]
    found.register(node("a", "0*1"), NOW_MS + 1)
    assert found.expire(NOW_MS + EXPIRE_AFTER_MS + 1) == []
    assert [each.registration.node for each in found.expire(NOW_MS + EXPIRE_AFTER_MS + 2)] == ["a"]
    assert found.expire(NOW_MS + EXPIRE_AFTER_MS + 2) == []
    assert found.clusters() == {}


def test_an_older_state_never_displaces_a_newer_one() -> None:
    """Neither a late registration nor a late un-registration of an earlier process; the same state
    is a sign of life."""
    found = with_nodes(node("a", "0*5", 7))
    before = found.nodes()
    answer = found.register(node("a", "1*9", 6, address="http://old"), NOW_MS + 1)
    assert (answer.accepted, answer.state_version) == (False, 7)
    assert found.unregister("c", "a", 6) == "ignored"
    assert found.nodes() == before
    assert found.register(node("a", "0*5", 7), NOW_MS + 1).accepted
    assert found.unregister("c", "a", 7) == "removed"
    assert found.register(node("a", "0*5", 6), NOW_MS).accepted


def test_an_address_belongs_to_one_node() -> None:
    """A node with the address of another one replaces it, unless the other one's state is newer."""
    found = with_nodes(node("a", "0*1", 5))
    assert not found.register(node("b", "0", 4, address="http://a"), NOW_MS).accepted
    assert served(found) == {0: ("a", [])}
    assert found.register(node("b", "1*1", 5, address="http://a"), NOW_MS).accepted
    assert served(found) == {1: ("b", [])}


def test_the_greater_epoch_wins_a_shard() -> None:
    """A deposed master that registers again is refused this shard, and told the master; its other
    shards count."""
    found = with_nodes(node("a", "0*5 1*3"), node("b", "0*6"))
    assert served(found) == {0: ("b", []), 1: ("a", [])}
    answer = found.register(node("a", "0*5 1*3"), NOW_MS)
    assert answer.refused == (0,)
    assert answer.masters == {0: Endpoint(node="b", address="http://b")}
    assert served(found) == {0: ("b", []), 1: ("a", [])}
    found.register(node("a", "0 1*3", 2), NOW_MS)
    assert served(found) == {0: ("b", ["a"]), 1: ("a", [])}


def test_clients_do_not_write_to_a_node_that_is_drained() -> None:
    """The shards that it is master of until then are without the permission."""
    found = with_nodes(node("a", "0*1 1"), node("b", "0 1*1"))

    def writable() -> list[bool]:
        routes = found.routes("c", "delay")
        assert routes is not None
        return [bool(each.permissions & WRITE) for each in routes.routes]

    assert writable() == [True, True]
    found.register(node("a", "0*1 1", 2, writable=False), NOW_MS)
    assert writable() == [False, True]
    assert [each.registration.writable for each in found.nodes()] == [False, True]
    found.register(node("a", "0*1 1", 3), NOW_MS)
    assert writable() == [True, True]


def test_a_topic_without_nodes_has_no_route() -> None:
    """An answer needs the topic's shards and their nodes; a shard or cluster of its own is asked
    for alone."""
    found = with_nodes(node("a", "0*1 2"))
    assert found.routes("c", "other") is None
    assert found.routes("d", "delay") is None
    assert found.routes("c", "delay", 2) is None
    one = found.routes("c", "delay", 0)
    assert one is not None
    assert ([each.shard for each in one.routes], one.partitions) == ([0], 4)
    assert found.delete_topic("c", "delay")
    assert found.routes("c", "delay") is None
    assert not found.delete_topic("c", "delay")
    found.register(node("a", "0*1 2", 2), NOW_MS)
    assert found.routes("c", "delay") is not None


def test_an_answer_is_a_copy() -> None:
    """Later changes of the registry do not reach it, and `changes` tells that it is out of date."""
    found = with_nodes(node("a", "0*1"))
    routes, nodes, clusters, changes = (
        found.routes("c", "delay"),
        found.nodes(),
        found.clusters(),
        found.changes,
    )
    assert routes is not None
    found.register(node("a", "0*1"), NOW_MS + 1)
    assert found.changes == changes
    found.register(node("b", "0"), NOW_MS)
    assert found.changes > changes
    assert routes.routes[0].followers == ()
    assert len(nodes) == 1
    assert clusters["c"].nodes == ("a",)


def test_configuration_has_namespaces_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "ENTRIES_MAX", 2)
    found = with_nodes(node("a", "0*1"))
    known = configured({}, "m", "delay", "a:4")
    known = configured(configured(known, "n", "k", "v"), "n", "k", "w")
    with pytest.raises(Full):
        configured(known, "n", "other", "v")
    assert known == {"m": {"delay": "a:4"}, "n": {"k": "w"}}
    changes = found.changes
    found.configure(known)
    found.configure(known)
    assert found.changes == changes + 1
    left = {"m": {"delay": "a:4"}}
    assert configured(known, "n", "k", None) == configured(left, "n", "k", None) == left


def test_configuration_has_a_bound_in_bytes() -> None:
    """Names count, in UTF-8. What is too large for it changes nothing."""
    most = "v" * (CONFIGURATION_BYTES_MAX - 4)
    known = configured({}, "n", "ö", most + "v")
    with pytest.raises(Full, match=f"would have {CONFIGURATION_BYTES_MAX + 1} bytes"):
        configured(known, "n", "ö", most + "vv")
    with pytest.raises(Full):
        configured(known, "n", "other", "")
    assert configured(known, "n", "ö", None) == {}


def test_the_number_of_nodes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full registry still takes the registrations of the nodes it has."""
    monkeypatch.setattr(registry, "NODES_MAX", 2)
    found = with_nodes(node("a", "0*1"), node("b", "0"))
    with pytest.raises(Full):
        found.register(node("d"), NOW_MS)
    assert found.register(node("a", "1*1", 2), NOW_MS).accepted


def test_the_number_of_replicas_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a registration replaces, or takes the address of, count no longer; a refused one
    changes nothing."""
    monkeypatch.setattr(registry, "HOLDINGS_MAX", 3)
    found = with_nodes(node("a", "0*1 1"), node("b", "0"))
    before = (found.nodes(), found.clusters())
    for refused in (node("d", "1"), node("a", "0*1 1 2", 2)):
        with pytest.raises(Full):
            found.register(refused, NOW_MS)
    with pytest.raises(Full):
        found.register(node("d", "0 1 2", 2, address="http://b"), NOW_MS)
    assert (found.nodes(), found.clusters()) == before
    assert found.register(node("a", "1 2", 3), NOW_MS).accepted
    assert found.register(node("d", "0", 2, address="http://b"), NOW_MS).accepted
    found.unregister("c", "a", 3)
    assert found.register(node("e", "0 1"), NOW_MS).accepted


def test_the_number_of_registered_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of followers count too, because a registration is kept as a whole; those that one
    replaces do not."""
    monkeypatch.setattr(registry, "TOPICS_MAX", 5)
    found = with_nodes(node("a", "0"), node("b", "1"))
    with pytest.raises(Full, match="4 topics are registered; 5 are the most"):
        found.register(node("d", "0"), NOW_MS)
    assert found.register(node("d", "0", topics={"delay": TOPICS["delay"]}), NOW_MS).accepted
    assert found.register(node("a", "0", 2), NOW_MS).accepted
    found.unregister("c", "b", 1)
    assert found.register(node("e", "0"), NOW_MS).accepted


def test_the_number_of_topics_of_all_shards_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay while a shard has a holder, also when the master that registered them is gone. A
    refused one changes nothing."""
    monkeypatch.setattr(registry, "TOPICS_MAX", 5)
    found = with_nodes(node("a", "0*1 1*1"), node("b", "0 1", topics=None))
    before = (found.nodes(), found.topics("c"), found.routes("c", "delay"))
    for refused in (
        node("a", "0*1 1*1 2*1", 2),
        node("d", "2*1 3*1", topics={"delay": TOPICS["delay"]}),
    ):
        with pytest.raises(Full, match="the shards have 4 topics; 5 are the most"):
            found.register(refused, NOW_MS)
    assert (found.nodes(), found.topics("c"), found.routes("c", "delay")) == before
    assert found.register(node("a", "0*2 1*2", 2), NOW_MS).accepted
    found.unregister("c", "a", 2)
    with pytest.raises(Full):
        found.register(node("d", "2*1"), NOW_MS)
    assert found.delete_topic("c", "progress")
    assert found.register(node("d", "2*1"), NOW_MS).accepted
    found.unregister("c", "b", 1)
    found.unregister("c", "d", 1)
    assert found.topics("c") == {}
    assert found.register(node("a", "0*1 1*1", 3), NOW_MS).accepted


# ---------------------------------------------------------------------------------- Against a model

NAMES = ("a", "b", "d")
SHARDS = (0, 1)


class Model:
    """The rules without indexes: the accepted registrations, and of each shard the nodes whose
    replica counts."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[Registration, int]] = {}
        self.holders: dict[int, dict[str, Holding]] = {shard: {} for shard in SHARDS}

    def remove(self, name: str) -> None:
        self.nodes.pop(name, None)
        for holders in self.holders.values():
            holders.pop(name, None)

    def register(self, given: Registration, now_ms: int) -> bool:
        name = given.node
        rivals = [
            old
            for old, _ in self.nodes.values()
            if old.node == name or old.address == given.address
        ]
        if any(old.state_version > given.state_version for old in rivals):
            return False
        for old in rivals:
            if old.node != name:
                self.remove(old.node)
        self.nodes[name] = (given, now_ms)
        for shard, holders in self.holders.items():
            holders.pop(name, None)
            holding = given.shards.get(shard)
            if holding is None:
                continue
            masters = (
                [other for other in holders if holders[other].master] if holding.master else []
            )
            if any(holders[other].epoch > holding.epoch for other in masters):
                continue
            for other in masters:
                del holders[other]
            holders[name] = holding
        return True

    def expire(self, now_ms: int) -> list[str]:
        gone = sorted(
            name for name, (_, at_ms) in self.nodes.items() if now_ms - at_ms > EXPIRE_AFTER_MS
        )
        for name in gone:
            self.remove(name)
        return gone


HOLDINGS = st.builds(Holding, master=st.booleans(), epoch=st.integers(1, 3))
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("register"),
            st.sampled_from(NAMES),
            st.sampled_from(NAMES),
            st.integers(1, 4),
            st.dictionaries(st.sampled_from(SHARDS), HOLDINGS),
        ),
        st.tuples(st.just("unregister"), st.sampled_from(NAMES), st.integers(1, 4)),
        st.tuples(st.just("pass"), st.integers(1, EXPIRE_AFTER_MS + 1)),
    ),
    max_size=30,
)


@examples(300)
@given(STEPS)
def test_a_registry_agrees_with_the_model(steps: list[tuple[Any, ...]]) -> None:
    """Whatever registers, leaves and expires; and when all have left, nothing is left over."""
    found, model, now_ms = Registry(), Model(), 0
    for kind, *arguments in steps:
        if kind == "register":
            name, host, state_version, shards = arguments
            given = replace(node(name, "", state_version, address=f"http://{host}"), shards=shards)
            assert found.register(given, now_ms).accepted == model.register(given, now_ms)
        elif kind == "unregister":
            name, state_version = arguments
            old = model.nodes.get(name)
            if old is not None and old[0].state_version <= state_version:
                model.remove(name)
            found.unregister("c", name, state_version)
        else:
            now_ms += arguments[0]
            assert sorted(each.registration.node for each in found.expire(now_ms)) == model.expire(
                now_ms
            )
        assert {
            each.registration.node: (each.registration, each.registered_ms)
            for each in found.nodes()
        } == model.nodes
        shards = [shard for shard, holders in model.holders.items() if holders]
        assert found.clusters() == (
            {"c": ClusterSummary(nodes=tuple(sorted(model.nodes)), shards=tuple(shards))}
            if model.nodes
            else {}
        )
        for shard, (master, followers) in served(found).items():
            holders = model.holders[shard]
            assert master == next((name for name in holders if holders[name].master), None)
            assert followers == sorted(name for name in holders if not holders[name].master)
        assert served(found).keys() >= {
            s for s, held in model.holders.items() if any(h.master for h in held.values())
        }
    for name in NAMES:
        found.unregister("c", name, 4)
    assert (found.clusters(), found.nodes(), found._topics, found._holders, found._addresses) == (
        {},
        [],
        {},
        {},
        {},
    )
    used = found._used
    assert (used.nodes, used.replicas, used.topics, used.served) == (0, 0, 0, 0)
