"""Faults planted in the registries, the registrations and the routes of clients: the simulation of
registries must find each of them."""

from __future__ import annotations

from chronos.client.servers import Servers
from chronos.core.cluster.registry import OwnRegistration, Registry
from tests.sim.faults import Change

REGISTRY_FAULTS: dict[str, list[Change]] = {
    "an older state displaces a newer one": [
        (
            Registry,
            "register",
            "if other.registration.state_version > registration.state_version:",
            "if False:",
        ),
    ],
    "a token registers a node that registers itself": [
        (
            Registry,
            "register",
            "if not by_itself and (other.by_itself or other is not live):",
            "if False:",
        ),
    ],
    "a node that a token registered keeps the node itself out": [
        (Registry, "register", "if by_itself and not other.by_itself:", "if False:"),
    ],
    "a token takes a shard from its master": [
        (
            Registry,
            "register",
            "holder = self._live[cluster, master].by_itself, holders[master].epoch",
            "holder = by_itself, holders[master].epoch",
        ),
    ],
    "two nodes have one address": [
        (Registry, "register", "self._remove(same_address)", "pass"),
    ],
    "the older master keeps its shard": [
        (
            Registry,
            "register",
            "if holder > (by_itself, holding.epoch):",
            "if holder < (by_itself, holding.epoch):",
        ),
    ],
    "a node that stopped takes its next process with it": [
        (
            Registry,
            "unregister",
            "if live.registration.state_version > state_version:",
            "if False:",
        ),
    ],
    "a node expires although it registers again": [
        (
            Registry,
            "register",
            "_Live(registration, now_ms, by_itself)",
            "_Live(registration, now_ms if live is None else live.registered_ms, by_itself)",
        ),
    ],
    "a node does not expire": [
        (Registry, "expire", "< now_ms", "< now_ms - 30_000"),
    ],
    "the shards of a node that is removed stay": [
        (Registry, "_remove", "self._drop_holder((cluster, shard), node)", "pass"),
    ],
    "the topics of the last node stay": [
        (Registry, "_drop_holder", "self._put_topics(shard, {}, by_itself=True)", "pass"),
    ],
    "a shard that a node gives up keeps it": [
        (Registry, "register", "self._drop_holder((cluster, shard), node)", "pass"),
    ],
    "a registry that starts again is not told before the interval is over": [
        (OwnRegistration, "due", "or peer.incarnation != incarnation", ""),
    ],
    "a change is not registered before the interval is over": [
        (OwnRegistration, "due", " or is_changed", ""),
    ],
    "a registry that failed is not asked again": [
        (OwnRegistration, "failed", "peer.is_asked, peer.failures", "_, peer.failures"),
    ],
    "a node whose clock was set back is not registered": [
        (OwnRegistration, "overtaken", "if self.state is sent:", "if False:"),
    ],
    "the state version grows with the clock only": [
        (OwnRegistration, "renew", "max(known.state_version + 1, wall_ms)", "wall_ms"),
    ],
    "a client does not ask for routes again": [
        (Servers, "needs_routes", "now_s >= self._expires_s or", ""),
    ],
}
