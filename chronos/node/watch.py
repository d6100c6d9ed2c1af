"""The watch of a node: a thread that judges each shard every second, whether it stands still
although there is work, and logs the troubles of all shards.

The judgement needs no request, because a request would wait for the very brokers that may have
caused the stall: the maintenance thread asks for the ends of the partitions, with `look`. A trouble
is one line for all shards that have it, which is repeated once a minute while it lasts; while no
broker answers, none is logged. The watch also wakes the shards when the wall clock was stepped."""

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import structlog
from msgspec import Struct, field

from chronos.core.texts import shards_text
from chronos.errors import ChronosError
from chronos.node.shards import ShardDriver
from chronos.node.threads import run_guarded
from chronos.ports import Clock, TopicLog
from chronos.workers.watch.stall import JUDGE_EVERY_MS, REPLAYING, facts_of

log = structlog.get_logger("chronos.shard")

CLOCK_STEP_MS = 10
"""Step of the wall clock after which shards look at it again; they may sleep for STEP_EVERY_S."""

LOG_EVERY_MS = 60_000
"""Time between two log lines about the same trouble."""

OVER_MS = 5_000
"""A trouble that has been absent for this long is over: one that comes and goes with each attempt
is one trouble."""

DIGITS = re.compile(r"\d+")


class _Trouble(Struct):
    """A trouble: one text, but for its numbers, that one or several shards report."""

    since_ms: int
    seen_ms: int
    logged_ms: int | None = None
    shards: set[int] = field(default_factory=set)
    """Those that had it since its last line."""
    told: set[int] = field(default_factory=set)
    """Those that a line has named."""
    is_stall: bool = False


class TroubleLog:
    """Logs a trouble when it begins, when it has reached more shards, once in LOG_EVERY_MS while it
    lasts, and when it is over."""

    def __init__(self) -> None:
        self._troubles: dict[str, _Trouble] = {}

    def step(self, now_ms: int, reasons: Mapping[int, str], stalled: Mapping[int, int]) -> None:
        """`now_ms`: monotonic time. `reasons`: why shards are paused. `stalled`: for how long those
        of them stand still (ms)."""
        texts: dict[str, str] = {}
        for shard, text in reasons.items():
            kind = DIGITS.sub("", text)
            texts[kind] = text
            trouble = self._troubles.setdefault(kind, _Trouble(since_ms=now_ms, seen_ms=now_ms))
            trouble.seen_ms = now_ms
            trouble.shards.add(shard)
        for kind, trouble in list(self._troubles.items()):
            if kind in texts:
                self._tell(now_ms, trouble, texts[kind], stalled)
            elif now_ms - trouble.seen_ms >= OVER_MS:
                del self._troubles[kind]
                if still := trouble.told - reasons.keys():
                    seconds = (trouble.seen_ms - trouble.since_ms) // 1_000
                    log.info("resumed", shards=shards_text(still), seconds=seconds)

    @staticmethod
    def _tell(now_ms: int, trouble: _Trouble, text: str, stalled: Mapping[int, int]) -> None:
        is_stall = not trouble.shards.isdisjoint(stalled)
        every_ms = LOG_EVERY_MS if trouble.shards <= trouble.told else OVER_MS
        is_upgraded = is_stall and not trouble.is_stall
        if (
            trouble.logged_ms is not None
            and now_ms - trouble.logged_ms < every_ms
            and not is_upgraded
        ):
            return
        seconds = (
            max(
                [
                    now_ms - trouble.since_ms,
                    *(stalled[shard] for shard in trouble.shards & stalled.keys()),
                ]
            )
            // 1_000
        )
        write = log.error if is_stall else log.warning
        write(
            "stalled" if is_stall else "paused",
            shards=shards_text(trouble.shards),
            seconds=seconds,
            why=text,
        )
        trouble.logged_ms, trouble.is_stall = now_ms, is_stall
        trouble.told |= trouble.shards
        trouble.shards = set()


class ShardWatch:
    """Judges all shards of a node, from `start` to `stop`."""

    def __init__(
        self,
        shards: Sequence[ShardDriver],
        log_port: TopicLog,
        *,
        progress_topic: str,
        clock: Clock,
        failed: Callable[[ChronosError], None],
        outage: Callable[[], str | None],
    ) -> None:
        """`failed`: called with the error that ended the thread. `outage`: why no broker is
        reached; what shards report meanwhile has that cause, and is not logged."""
        self._shards = shards
        self._log = log_port
        self._progress_topic = progress_topic
        self._clock = clock
        self._outage = outage
        self._quiet_until_ms = 0
        """Monotonic time before which troubles are not logged: they are those of the outage, or
        what is left of it."""
        self._troubles = TroubleLog()
        self._stepped_ms = clock.stepped_ms()
        """`Clock.stepped_ms` when the shards last looked at the clock because of it."""
        self._delay_ends: dict[int, int] = {}
        self._progress_ends: dict[int, int] = {}
        self._stopping = threading.Event()
        self.thread = threading.Thread(
            target=run_guarded, args=("watch", self._run, failed), name="watch", daemon=True
        )

    def look(self, delay_ends: Mapping[int, int]) -> None:
        """Note the ends of the delay partitions that masters read, and ask for those of the
        progress partitions that are replayed; the ends known so far remain true. For the
        maintenance thread: it may take seconds."""
        replaying = [shard.number for shard in self._shards if shard.role in REPLAYING]
        self._delay_ends |= delay_ends
        self._progress_ends |= self._log.stable_ends(self._progress_topic, replaying)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def _run(self) -> None:
        while True:
            self.step(time.monotonic_ns() // 1_000_000)
            if self._stopping.wait(JUDGE_EVERY_MS / 1_000):
                return

    def step(self, monotonic_ms: int) -> None:
        """Judge all shards, and log their troubles; wake them when the wall clock was stepped:
        messages may be due."""
        stepped_ms = self._clock.stepped_ms()
        is_stepped = abs(stepped_ms - self._stepped_ms) >= CLOCK_STEP_MS
        if is_stepped:
            self._stepped_ms = stepped_ms
        for shard in self._shards:
            if is_stepped:
                shard.step_soon()
            self._judge(shard, monotonic_ms)
        if self._outage() is not None:
            self._quiet_until_ms = monotonic_ms + OVER_MS
        elif monotonic_ms >= self._quiet_until_ms:
            reasons = {
                shard.number: why for shard in self._shards if (why := shard.paused) is not None
            }
            stalled = {shard.number: shard.stall.ms for shard in self._shards if shard.stall.ms}
            self._troubles.step(monotonic_ms, reasons, stalled)

    def _judge(self, shard: ShardDriver, monotonic_ms: int) -> None:
        number, replica = shard.number, shard.replica
        facts = facts_of(
            replica,
            now_ms=self._clock.now_ms(),
            delay_end=self._delay_ends.get(number),
            progress_end=self._progress_ends.get(number),
        )
        shard.stall.judge(
            monotonic_ms,
            facts,
            counts=not shard.turns.are_awaited,
            is_slow=replica.delayed is not None,
            step_began_ms=shard.step_began_ms,
            trouble=replica.trouble,
        )
