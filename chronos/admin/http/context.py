"""The context of all handlers: one request (`Call`), and the server's shared state (`Context`): the
node, its registry, the audit trail, threads for blocking work, the client for other nodes, bounds
of memory and of long polls, values that are cached for a short time, and what handlers share to
write and to read records."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import structlog
from aiohttp import web
from msgspec import Struct

from chronos.admin.cluster.peers import PeerClient
from chronos.admin.http.audit import Trail
from chronos.admin.http.connections import BODIES_BYTES_MAX, BodyBudget, BodyShare
from chronos.admin.http.encoding import Cursors
from chronos.admin.http.tokens import Sender, TokenFile
from chronos.admin.http.waiting import Polls, ThreadTurns, Waiter, asker
from chronos.admin.letters.recent import RecentRejections
from chronos.admin.letters.scan import LetterTopic
from chronos.admin.messages.scheduling import Planner, RequestAppender
from chronos.admin.messages.targets import TargetTopics
from chronos.core.cluster.registry.registry import Registry
from chronos.core.cluster.roles import Member, Roles, ShardRoles
from chronos.core.keys import id_key
from chronos.core.letters import read, read_rejected
from chronos.core.shard.codec import State, unpack_id_state
from chronos.core.shard.order import is_repeated
from chronos.core.shard.rules import Rules
from chronos.core.texts import shards_text
from chronos.core.timefmt import format_time
from chronos.errors import ChronosError
from chronos.node import IN_PLACE, Node
from chronos.node.shards import ShardDriver
from chronos.workers.replica.leadership import FOREIGN_SILENCE_MS
from chronos.workers.replica.state import ReplicaState

log = structlog.get_logger("chronos.http")

THREADS = 16
"""Threads for queries to the stores and to the log."""

THREADS_SHARE = 2
"""Threads that one token uses at a time: a query computes for most of its time, and threads compute
one at a time."""

END_THREADS = 16
"""Threads that ask the log for the ends of partitions, which may take long: look-ups and actions
wait for them."""

END_THREADS_SHARE = 8
"""Threads of these that one token uses at a time."""

POLL_THREADS = 16
"""Threads for long polls, which share none with other requests: one for each partition that is
waited for."""

PLAN_THREADS = 2
"""Threads that check large bodies: they compute, so that more would take turns with the shards and
not be faster."""

LOG_QUERY_S = 1.0
"""How long an answer that can do without the log waits for it."""

BACKGROUND_S = 2.0
"""How long background work may take to end when the server stops."""

T = TypeVar("T")


class Call(Struct):
    """One request, read and checked as far as its route describes it."""

    request: web.Request
    query: Any
    body: bytes
    sender: Sender
    share: BodyShare
    """The request's share of the memory for bodies."""


class Context:
    """The shared state of all handlers. It belongs to the server's event loop and is closed with
    the server."""

    def __init__(self, node: Node, trail: Trail, tokens: TokenFile | None = None) -> None:
        self.node = node
        self.trail = trail
        self.tokens = tokens
        self.stopping = asyncio.Event()
        """Set once the server stops; every wait ends then."""
        self.delay_topic = node.config.topics.delay
        self.rules: list[Rules] = [driver.shard.rules for driver in node.shards]
        self._threads = ThreadTurns(THREADS, "http", share=THREADS_SHARE)
        self._end_threads = ThreadTurns(END_THREADS, "http-end", share=END_THREADS_SHARE)
        self._poll_threads = ThreadPoolExecutor(POLL_THREADS, "http-poll")
        self._plan_threads = ThreadPoolExecutor(PLAN_THREADS, "http-plan")
        self._shard_threads = ThreadPoolExecutor(len(node.shards), "http-shard")
        self._writer = ThreadPoolExecutor(1, "http-append")
        self.appender = RequestAppender(node.log, self._writer)
        self.pull_waiters = [_pull_waiter(driver, self._shard_threads) for driver in node.shards]
        """By shard: waits until a record of its delay partition was applied; the position is the
        offset after it."""
        self.planner = Planner(
            rules=self.rules,
            delay_topic=self.delay_topic,
            bytes_max=node.config.topics.message_bytes_max,
            knows_call=self.knows_call,
        )
        self.targets = TargetTopics(node.log, self._threads)
        self.creates_targets = node.config.delivery.create_topics
        """Missing target topics are created on demand."""
        self.peers = PeerClient(node)
        self.cursors = Cursors(node.config, node.token, self.members)
        self.polls = Polls(node.log, self._poll_threads, self.stopping)
        self.bodies = BodyBudget(max(BODIES_BYTES_MAX, 4 * node.config.topics.message_bytes_max))
        self.registry = Registry()
        """Owned by the event loop."""
        topics = node.config.topics
        self.dead_letters = LetterTopic(node.log, topics.dead_letter, read, has_markers=True)
        self.rejected = LetterTopic(node.log, topics.rejected, read_rejected, has_markers=False)
        self.recent_rejections = RecentRejections(node.log, self.rejected)
        self._background: set[asyncio.Task[None]] = set()
        self._ends: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._refreshed_s = float("-inf")
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def shards(self) -> list[ShardDriver]:
        """The shards, by number."""
        return self.node.shards

    def members(self) -> Mapping[str, Member]:
        """The nodes of the cluster, by name; none of a standalone node."""
        membership = self.node.membership
        return {} if membership is None else membership.snapshot().members

    def knows_call(self, shard: int, message_id: bytes | None, token: bytes | None) -> bool:
        """True if the call (`order.call_token`) is one of the last ones of the id that were
        executed, as far as this node knows. Any thread may call."""
        if message_id is None or token is None or not self.peers.holds(shard):
            return False
        (row,) = self.shards[shard].store.get([id_key(message_id)])
        return row is not None and is_repeated(unpack_id_state(row), token)

    def now_ms(self) -> int:
        """This machine's clock."""
        return self.node.clock.now_ms()

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work that may block, or takes a while, in a thread."""
        return await self._threads.run(work, *arguments)

    async def in_poll_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work of a long poll."""
        return await asyncio.get_running_loop().run_in_executor(
            self._poll_threads, work, *arguments
        )

    async def in_plan_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work that computes on a large body."""
        return await asyncio.get_running_loop().run_in_executor(
            self._plan_threads, work, *arguments
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that outlives its request. It ends soon after `stopping` is set."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def caught_up(self, shard: int, deadline_s: float) -> bool:
        """Wait until the shard has applied all records its delay partition holds now; False after
        the time."""
        try:
            async with asyncio.timeout_at(deadline_s):
                end = await self._end_threads.run(self.node.log.stable_end, self.delay_topic, shard)
        except (TimeoutError, ChronosError):
            return False
        return await self.pull_waiters[shard].wait(
            end, deadline_s - asyncio.get_running_loop().time()
        )

    # --- values of all shards at once

    async def refresh(self, fresh_s: float = 0.0) -> None:
        """Read end offsets and store sizes anew if they are older than `fresh_s`; wait at most
        LOG_QUERY_S for the log."""
        now_s = time.monotonic()
        deadline_s = now_s + LOG_QUERY_S
        while self._refreshed_s < now_s - fresh_s and (left_s := deadline_s - time.monotonic()) > 0:
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            await asyncio.wait([self._refreshing], timeout=left_s)

    async def _refresh(self) -> None:
        def sizes() -> dict[int, int]:
            found = {}
            for shard in self.shards:
                with suppress(ChronosError):
                    found[shard.number] = shard.store.size_bytes()
            return found

        def ends() -> dict[int, int]:
            # All at once, in one thread: without brokers a request takes the whole of its time-out.
            with suppress(ChronosError):
                return self.node.log.high_watermarks(self.delay_topic, range(len(self.shards)))
            return {}

        # For all requests that wait for it, whichever token's came first.
        asker.set(None)
        began_s = time.monotonic()
        self._sizes = await self.in_thread(sizes)
        self._ends = await self.in_thread(ends)
        self._refreshed_s = began_s

    def end_offset(self, shard: int) -> int | None:
        """The high watermark of the shard's delay partition at the last refresh; None: the log did
        not answer."""
        end = self._ends.get(shard)
        return None if end is None else max(end, self.shards[shard].state.pull_offset)

    def lag(self, shard: int) -> int | None:
        """Offsets of the shard's delay partition that are not executed yet, up to `end_offset`;
        None: the log did not answer."""
        end, driver = self.end_offset(shard), self.shards[shard]
        # Forwarded records come in transactions, whose markers take offsets.
        return None if end is None else max(0, end - max(driver.state.pull_offset, driver.pulled))

    def store_bytes(self, shard: int) -> int:
        """The size of the shard's store on disk at the last refresh."""
        return self._sizes.get(shard, 0)

    def reasons(self) -> list[str]:
        """Why the node is not ready; empty: it is ready."""
        node = self.node
        if node.failure is not None:
            return [str(node.failure)]
        if self.stopping.is_set():
            return ["the node is stopping"]
        troubles = {
            shard.number: (str(shard.role), shard.paused)
            for shard in node.shards
            if shard.role not in IN_PLACE or shard.paused is not None
        }
        if node.outage is not None:
            return [during(node.outage, troubles)]
        return ([] if node.degraded is None else [node.degraded]) + together(troubles)

    def details(self) -> list[str]:
        """What operators should know although it does not make the node unready."""
        now_ms = self.now_ms()
        held_back = [
            found.text(self.delay_topic, shard.number)
            for shard in self.shards
            if (found := self.node.open_transactions.held_back(shard.number)) is not None
        ]
        deaths = [
            f"shard {shard.number}: {dead.text(with_targets=False)}"
            for shard in self.shards
            if (dead := self.node.outcomes.recent_deaths(shard.number, now_ms)) is not None
        ]
        waiting = [
            f"shard {shard.number}: {without_names(waits)}"
            for shard in self.shards
            if (waits := shard.waits_for(now_ms)) is not None
        ]
        older_zone_data = self.node.older_zone_data
        brokers = self.node.selector.brokers()
        avoided = [
            f"broker {broker} took {found.latency_ms} ms: messages without a key avoid it until"
            f" {format_time(found.available_ms)}"
            for broker, found in sorted(brokers.items())
            if len(brokers) > 1 and not found.is_available(now_ms)
        ]
        return (
            self._unconfirmed()
            + self.node.switched_off
            + ([] if older_zone_data is None else [older_zone_data])
            + self.node.advice
            + held_back
            + deaths
            + waiting
            + avoided
            + self._shortages()
            + self._untrimmed()
            + self._access_troubles()
        )

    def _access_troubles(self) -> list[str]:
        """Return notes if the audit trail or the token file cannot be used; the log and `/metrics`
        have details."""
        refused = (
            ": requests that change something or show payloads are refused"
            if self.trail.required
            else ""
        )
        found = (
            [] if self.trail.problem is None else [f"the audit trail cannot be written{refused}"]
        )
        if self.tokens is not None and self.tokens.problem is not None:
            found.append(
                "the file of admin.tokens cannot be used: the tokens of its last good form count"
            )
        return found

    def _unconfirmed(self) -> list[str]:
        """That roles do not change, since the coordinator does not answer, cannot store them or has
        lost them, and the shards for which that matters."""
        membership, now_ms = self.node.membership, self.now_ms()
        if membership is None:
            return []
        snapshot = membership.snapshot()
        if snapshot.confirmed:
            full = [] if membership.full is None else [f"roles do not change: {membership.full}"]
            return full + self._older(snapshot.roles)
        silent = [
            silence(shard.number, shard.state, now_ms)
            for shard in self.shards
            if shard.role == ReplicaState.FOLLOWER
        ]
        return [
            snapshot.why or "the coordinator does not answer this node: its roles do not change",
            *filter(None, silent),
        ]

    def _older(self, roles: Roles | None) -> list[str]:
        """Return a note if the coordinator's roles are older than those under which this node
        leads."""
        known = {} if roles is None else roles.shards
        older = [
            shard.number
            for shard in self.shards
            if shard.role == ReplicaState.MASTER
            and known.get(shard.number, ShardRoles()).epoch < shard.state.role_epoch
        ]
        if not older:
            return []
        return [
            f"the roles of the coordinator are older than those of {shards_text(older)} here: its "
            "data were lost, or restored from an older state; masters continue until the "
            "controller publishes later roles"
        ]

    def _shortages(self) -> list[str]:
        """The shards that this node is master of and that have too few followers in sync."""
        watch = self.node.in_sync
        if watch is None:
            return []
        refused = ": messages for it are not accepted over HTTP" if watch.rules.refuses else ""
        return [
            f"shard {shard.number} has {shortage}{refused}"
            for shard in self.shards
            if shard.role == ReplicaState.MASTER
            and (shortage := watch.shortage(shard.number)) is not None
        ]

    def _untrimmed(self) -> list[str]:
        """The shards whose last checkpoint failed; the reasons name storage, and are not for
        everybody."""
        scheduler = self.node.checkpoints
        if scheduler is None or not (problems := scheduler.problems()):
            return []
        return [
            f"checkpoints of {shards_text(sorted(problems))}, or the trimming of logs by them, "
            "fail: GET /v1/checkpoints says why"
        ]

    async def close(self) -> None:
        """Close the connections and stop the threads; a call that still blocks ends by its own
        timeout."""
        if self._background:
            await asyncio.wait(self._background, timeout=BACKGROUND_S)
        await self.peers.close()
        await self.trail.close()
        for turns in (self._threads, self._end_threads):
            turns.close()
        for pool in (self._poll_threads, self._plan_threads, self._shard_threads, self._writer):
            pool.shutdown(wait=False, cancel_futures=True)


def together(troubles: Mapping[int, tuple[str, str | None]]) -> list[str]:
    """The roles and the reasons of shards that are not ready, each once with its shards."""
    shards: dict[tuple[str, str | None], list[int]] = {}
    for number, trouble in troubles.items():
        shards.setdefault(trouble, []).append(number)
    return [
        f"{shards_text(numbers)} {'is' if len(numbers) == 1 else 'are'} {role}"
        + (f": {why}" if why else "")
        for (role, why), numbers in shards.items()
    ]


def during(outage: str, shards: Iterable[int]) -> str:
    """The outage as the one reason of all shards that are not ready."""
    numbers = list(shards)
    return f"{outage} ({shards_text(numbers)})" if numbers else outage


def without_names(waits: str) -> str:
    """Return the text about a waiting shard without topics and partitions, which some senders may
    not see."""
    return waits.partition(" from ")[0]


def _pull_waiter(shard: ShardDriver, executor: Executor) -> Waiter:
    return Waiter(
        lambda: shard.pulled,
        lambda pulled, timeout_s: shard.applied.wait_pulled(pulled + 1, timeout_s),
        executor,
    )


def silence(shard: int, state: State, now_ms: int) -> str | None:
    """Return a note about a shard whose last progress record is old, because its master may be
    down; None if the record is recent.

    A master commits one at least every minute.
    """
    if not state.progress_ms or now_ms - state.progress_ms < FOREIGN_SILENCE_MS:
        return None
    return (
        f"shard {shard}: this node has read no progress of the master, {state.node}, since "
        f"{format_time(state.progress_ms)}; this node cannot take over before the coordinator "
        "answers"
    )
