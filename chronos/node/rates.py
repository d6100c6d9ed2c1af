"""The rate limits in force on this node: those of the configuration, and those set at run time.

In a cluster the controller publishes the limits set at run time with the roles, so every node has
them within a second and keeps the last ones while the coordinator does not answer. A standalone
node keeps them in its data directory."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
from msgspec import Struct

from chronos.adapters.disk import keep
from chronos.config import Config
from chronos.core.cluster.roles import Request
from chronos.core.rates import Rate, check_pattern, parse_rate, rate_text
from chronos.errors import Stop
from chronos.node.shards import configured_rates
from chronos.workers.step.lanes import RateLimits

if TYPE_CHECKING:
    from chronos.node.shards import ShardDriver
    from chronos.workers.cluster.membership import Membership

log = structlog.get_logger("chronos.node")

RATES_FILE = "rates.json"
"""The file of a standalone node's limits, in its data directory."""


class _KeptRates(Struct, kw_only=True):
    """The content of the file."""

    version: int = 1
    rates: dict[str, str] = {}


class NodeRates:
    """The limits in force on this node. Any thread may use it."""

    def __init__(self, config: Config, directory: Path) -> None:
        """`directory`: the data directory; its file is read by `open`."""
        self._file = directory / RATES_FILE
        self._shards: Sequence[ShardDriver] = ()
        self._membership: Membership | None = None
        self._lock = threading.Lock()
        self._texts: Mapping[str, str] = {}
        self._changed: Mapping[str, Rate | None] = {}
        self.limits = RateLimits(
            configured_rates(config), changed=self.changed, lengths=self._lengths
        )

    def open(self, shards: "Sequence[ShardDriver]", membership: "Membership | None") -> None:
        """Begin with these shards of the node. Raises Stop if the file of a standalone node cannot
        be read."""
        self._shards, self._membership = shards, membership
        if membership is None and self._file.exists():
            try:
                kept = msgspec.json.decode(self._file.read_bytes(), type=_KeptRates)
                self._changed = {
                    check_pattern(pattern): parse_rate(text) for pattern, text in kept.rates.items()
                }
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                raise Stop(
                    f"{self._file} holds no rate limits that this version can read ({error}). "
                    "Remove it to continue with those of the configuration"
                ) from error

    def changed(self) -> Mapping[str, Rate | None]:
        """Return the limits that were set at run time, the same object until they change."""
        snapshot = None if self._membership is None else self._membership.snapshot()
        texts = None if snapshot is None or snapshot.roles is None else snapshot.roles.limited
        if texts is not None and texts is not self._texts:
            with self._lock:
                if texts != self._texts:
                    self._changed = _parsed(texts)
                self._texts = texts
        return self._changed

    def set(self, pattern: str, rate: Rate | None, *, at_ms: int) -> None:
        """Set the limit of a pattern. Raises CoordinatorUnavailable; NoSpace if it cannot be
        kept."""
        self._change(pattern, rate_text(rate), at_ms)

    def remove(self, pattern: str, *, at_ms: int) -> None:
        """Remove the limit that was set for a pattern at run time. Raises CoordinatorUnavailable;
        NoSpace if it cannot be kept."""
        self._change(pattern, "", at_ms)

    def _change(self, pattern: str, text: str, at_ms: int) -> None:
        log.info("rate limit", pattern=pattern, rate=text or "as configured")
        if self._membership is not None:
            self._membership.ask(
                Request(kind="limit", node="", pattern=pattern, rate=text, at_ms=at_ms)
            )
            return
        with self._lock:
            changed = {each: rate for each, rate in self._changed.items() if each != pattern}
            if text:
                changed[pattern] = parse_rate(text)
            # The file has either the old or the new limits after a crash.
            texts = {each: rate_text(rate) for each, rate in changed.items()}
            keep(self._file, msgspec.json.encode(_KeptRates(rates=texts)))
            self._changed = changed
        for shard in self._shards:
            shard.step_soon()

    def _lengths(self, topic: str) -> list[int]:
        """Return the number of messages that wait for the rate of the topic in each shard of the
        service.

        In a cluster all nodes count what the masters reported, so that their shares agree.
        """
        if self._membership is None:
            return [shard.replica.waiting.get(topic, 0) for shard in self._shards]
        lengths = [0] * len(self._shards)
        for member in self._membership.snapshot().members.values():
            for shard, replica in member.replicas.items():
                if replica.waiting and replica.role == "master" and shard < len(lengths):
                    lengths[shard] = replica.waiting.get(topic, 0)
        return lengths


def _parsed(texts: Mapping[str, str]) -> dict[str, Rate | None]:
    """Return the limits that this version can read."""
    found = {}
    for pattern, text in texts.items():
        try:
            found[check_pattern(pattern)] = parse_rate(text)
        except ValueError as error:
            log.warning("rate limit of another version ignored", pattern=pattern, why=str(error))
    return found
