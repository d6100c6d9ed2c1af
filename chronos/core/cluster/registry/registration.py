"""The registration of one node with its own registry and with those of all other nodes.

After RocketMQ: each time the whole registration, at once when it changes, else once every interval.
A registry that does not answer gets the registration again after a pause, and no registry waits for
another one. This module decides when it is sent, and under which state version;
`admin.cluster.registry` describes what the node serves, and makes the requests."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.cluster.registry.values import Registration

EXPIRE_INTERVALS = 4
"""Intervals after its last registration at which a registry removes a node: three registrations in
a row may be lost."""

RETRY_MS = 5_000
"""Pause before a registry that failed is asked again."""

FAILURES_TOLD = 2
"""Failures in a row that are worth a warning."""


class Peer(Struct):
    """The registry of another node."""

    node: str
    incarnation: int
    """Start of its process: the registry of the next process is empty."""
    due_ms: int
    """When to register again (ms of the same clock)."""
    state_version: int
    """The state that it answered last, or that of the first look at it."""
    failures: int = 0
    """Times in a row that it did not answer."""
    is_asked: bool = False
    """A registration was sent and not answered yet."""


class OwnRegistration:
    """The registration of one node. Times are milliseconds of any clock that does not step,
    `wall_ms` is epoch time."""

    def __init__(self, *, started_ms: int, after_ms: int, every_ms: int) -> None:
        """`after_ms`: time from the start to the first registration with others. `every_ms`: the
        interval."""
        self.state: Registration | None = None
        """As it was last renewed; None before the first time."""
        self._first_ms = started_ms + after_ms
        self._every_ms = every_ms
        self._own_due_ms = 0
        self._peers: dict[str, Peer] = {}

    def renew(self, served: Registration, wall_ms: int) -> Registration:
        """Take what the node serves now, and return its registration. The state version grows with
        every change of it, also across restarts; the one in `served` is ignored."""
        known = self.state
        if known is None:
            self.state = replace(served, state_version=wall_ms)
        elif replace(served, state_version=known.state_version) != known:
            self.state = replace(served, state_version=max(known.state_version + 1, wall_ms))
        else:
            return known
        self._own_due_ms = 0
        return self.state

    def own_is_due(self, now_ms: int) -> bool:
        """Return whether the node's own registry gets the registration now; if so, it is due again
        after the interval."""
        if now_ms < self._own_due_ms:
            return False
        self._own_due_ms = now_ms + self._every_ms
        return True

    def due(self, incarnations: Mapping[str, int], now_ms: int) -> list[Peer]:
        """Return the registries to send the registration to now, which are then asked.
        `incarnations`: the start of each other node's process."""
        assert self.state is not None, "renewed before"
        for node in self._peers.keys() - incarnations.keys():
            del self._peers[node]
        asked = []
        for node, incarnation in incarnations.items():
            peer = self._peers.get(node)
            if peer is None or peer.incarnation != incarnation:
                # The state at the start is no change.
                first_ms = max(now_ms, self._first_ms)
                peer = self._peers[node] = Peer(
                    node, incarnation, first_ms, self.state.state_version
                )
            is_changed = not peer.failures and peer.state_version != self.state.state_version
            if (now_ms >= peer.due_ms or is_changed) and not peer.is_asked:
                peer.is_asked = True
                asked.append(peer)
        return asked

    def failed(self, peer: Peer, now_ms: int) -> bool:
        """Note that a registry did not answer; return whether that is worth a warning. One failure
        is not: a node that has just joined is a member for a moment before it listens."""
        failures = peer.failures + 1
        peer.is_asked, peer.failures, peer.due_ms = False, failures, now_ms + RETRY_MS
        return failures == FAILURES_TOLD

    def answered(self, peer: Peer, sent: Registration, now_ms: int) -> bool:
        """Note that a registry answered; return whether a warning was given about its failures."""
        failed = peer.failures >= FAILURES_TOLD
        peer.is_asked, peer.failures, peer.due_ms = False, 0, now_ms + self._every_ms
        peer.state_version = sent.state_version
        return failed

    def overtaken(self, sent: Registration, state_version: int) -> None:
        """A registry has a later state of this node: the clock was set back between two of its
        processes."""
        if self.state is sent:
            self.state = replace(sent, state_version=state_version + 1)
            self._own_due_ms = 0
