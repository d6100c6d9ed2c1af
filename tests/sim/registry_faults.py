"""Faults planted in the registries, the registrations and the routes of clients: the simulation of
registries must find each of them."""

from __future__ import annotations

from tests.sim.planting import Change, Faults

REGISTRY_FAULTS: Faults = {
    "an older state displaces a newer one": [
        Change("if other.registration.state_version > registration.state_version:", "if False:")
    ],
    "a token registers a node that registers itself": [
        Change("if not by_itself and (other.by_itself or other is not live):", "if False:")
    ],
    "a node that a token registered keeps the node itself out": [
        Change("if by_itself and not other.by_itself:", "if False:")
    ],
    "a token takes a shard from its master": [
        Change(
            "holder = self._live[cluster, master].by_itself, holders[master].epoch",
            "holder = by_itself, holders[master].epoch",
        )
    ],
    "two nodes have one address": [Change("self._remove(same_address)", "pass")],
    "the older master keeps its shard": [
        Change("if holder > (by_itself, holding.epoch):", "if holder < (by_itself, holding.epoch):")
    ],
    "a node that stopped takes its next process with it": [
        Change("if live.registration.state_version > state_version:", "if False:")
    ],
    "a node expires although it registers again": [
        Change(
            "_Live(registration, now_ms, by_itself)",
            "_Live(registration, now_ms if live is None else live.registered_ms, by_itself)",
        )
    ],
    "a node does not expire": [Change("< now_ms", "< now_ms - 30_000", "expire")],
    "the shards of a node that is removed stay": [
        Change("self._drop_holder((cluster, shard), node)", "pass", "_remove")
    ],
    "the topics of the last node stay": [
        Change("self._put_topics(shard, {}, by_itself=True)", "pass")
    ],
    "a shard that a node gives up keeps it": [
        Change("self._drop_holder((cluster, shard), node)", "pass", "register")
    ],
    "a registry that starts again is not told before the interval is over": [
        Change("or peer.incarnation != incarnation", "")
    ],
    "a change is not registered before the interval is over": [Change(" or is_changed", "")],
    "a registry that failed is not asked again": [
        Change("peer.is_asked, peer.failures", "_, peer.failures", "failed")
    ],
    "a node whose clock was set back is not registered": [
        Change("if self.state is sent:", "if False:")
    ],
    "the state version grows with the clock only": [
        Change("max(known.state_version + 1, wall_ms)", "wall_ms")
    ],
    "a client does not ask for routes again": [Change("now_s >= self._expires_s or", "")],
}
