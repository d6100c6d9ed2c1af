"""The registration of one node with all registries: its state version, which registries are due, and what an answer changes.

After RocketMQ (NS-13): each time the whole registration, at once when it changes, else every interval. A registry that does not answer
is asked again after a pause. No registry waits for another one. `core.registry` is the other side.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from chronos.core.registry import Registration

RETRY_MS = 5_000
"""Pause before a registry that failed is asked again."""


class Peer(Struct):
    """The registry of another node."""

    node: str
    life: int
    """Start of its process: the registry of the next process is empty."""
    due_ms: int
    """When to register again."""
    state_version: int
    """The state that it answered last, or that of the first look at it."""
    has_failed: bool = False
    is_asked: bool = False
    """A registration was sent and not answered yet."""


class OwnRegistration:
    """The registration of one node. Times are milliseconds of any clock that does not step, `wall_ms` is epoch time."""

    def __init__(self, *, started_ms: int, after_ms: int, every_ms: int) -> None:
        """`after_ms`: time from the start to the first registration with others. `every_ms`: the interval."""
        self.state: Registration | None = None
        """As it was last renewed; None before the first time."""
        self._first_ms = started_ms + after_ms
        self._every_ms = every_ms
        self._own_due_ms = 0
        self._peers: dict[str, Peer] = {}

    def renew(self, found: Registration, wall_ms: int) -> Registration:
        """Take what the node serves now; the state version grows with every change of it, also across restarts.

        The version of `found` counts for nothing.
        """
        known = self.state
        if known is None:
            self.state = replace(found, state_version=wall_ms)
        elif replace(found, state_version=known.state_version) != known:
            self.state = replace(found, state_version=max(known.state_version + 1, wall_ms))
        else:
            return known
        self._own_due_ms = 0
        return self.state

    def own_is_due(self, now_ms: int) -> bool:
        """Return whether the node's own registry gets the registration now; if so, it is due again after the interval."""
        if now_ms < self._own_due_ms:
            return False
        self._own_due_ms = now_ms + self._every_ms
        return True

    def due(self, lives: Mapping[str, int], now_ms: int) -> list[Peer]:
        """Return the registries to send the registration to now, which are then asked. `lives`: the start of each other node's process."""
        assert self.state is not None, "renewed before"
        for node in self._peers.keys() - lives.keys():
            del self._peers[node]
        found = []
        for node, life in lives.items():
            peer = self._peers.get(node)
            if peer is None or peer.life != life:
                # The state at the start is no change.
                first_ms = max(now_ms, self._first_ms)
                peer = self._peers[node] = Peer(node, life, first_ms, self.state.state_version)
            is_changed = not peer.has_failed and peer.state_version != self.state.state_version
            if (now_ms >= peer.due_ms or is_changed) and not peer.is_asked:
                peer.is_asked = True
                found.append(peer)
        return found

    def failed(self, peer: Peer, now_ms: int) -> bool:
        """Note that a registry did not answer; return whether it answered before."""
        answered = not peer.has_failed
        peer.is_asked, peer.has_failed, peer.due_ms = False, True, now_ms + RETRY_MS
        return answered

    def answered(self, peer: Peer, sent: Registration, now_ms: int) -> bool:
        """Note that a registry answered; return whether it failed before."""
        failed = peer.has_failed
        peer.is_asked, peer.has_failed, peer.due_ms = False, False, now_ms + self._every_ms
        peer.state_version = sent.state_version
        return failed

    def overtaken(self, sent: Registration, state_version: int) -> None:
        """A registry has a later state of this node: the clock was set back between two of its processes."""
        if self.state is sent:
            self.state = replace(sent, state_version=state_version + 1)
            self._own_due_ms = 0
