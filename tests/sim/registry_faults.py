"""Faults planted in the registries, the registrations and the routes of clients: the simulation of
registries must find each of them."""

from __future__ import annotations

from tests.sim.planting import Change, Faults

REGISTRY_FAULTS: Faults = {
    "an older state displaces a newer one": [
        Change("other.registration.state_version > registration.state_version", "False")
    ],
    "two nodes have one address": [Change("self._remove(same_address)", "pass")],
    "the older master keeps its shard": [
        Change("holders[master].epoch > holding.epoch", "holders[master].epoch < holding.epoch")
    ],
    "a node that stopped takes its next process with it": [
        Change("if live.registration.state_version > state_version:", "if False:")
    ],
    "a node expires although it registers again": [
        Change(
            "_Live(registration, now_ms)",
            "_Live(registration, now_ms if live is None else live.registered_ms)",
        )
    ],
    "a node does not expire": [Change("< now_ms", "< now_ms - 30_000", "expire")],
    "the shards of a node that is removed stay": [
        Change("self._drop_holder((cluster, shard), node)", "pass", "_remove")
    ],
    "the topics of the last node stay": [Change("self._put_topics(shard, {})", "pass")],
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
