"""The handlers of `/v1/messages`: schedule, find, cancel, reschedule, fire, pause and resume.

A change is a record of the delay topic; no handler writes to a store. A schedule request is
answered once the log has its records, and with `wait` once the shards have applied them or that
time is over; its outcome can be asked for later. An action on one message is answered once the
shard has applied its record, or after ACT_S: the replica remembers which records were refused. A
look-up or an action in a shard that only other nodes hold is sent to one of them. Lists are in
`listing`, bulk operations in `jobs`."""

import asyncio
import time
from contextlib import suppress
from functools import partial
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from chronos.admin.cluster.peers import CONNECT_S
from chronos.admin.http.access import check_id, forbidden, key_of
from chronos.admin.http.context import Call, Context
from chronos.admin.http.encoding import (
    BASE64_ID,
    id_path,
    id_text,
    text_or_base64,
    whole_id_bytes,
)
from chronos.admin.http.problems import (
    PROBLEM_JSON,
    ProblemError,
    converted,
    decode_body,
    from_error,
    wrong_field,
)
from chronos.admin.http.schemas import (
    Accepted,
    ActionResult,
    Fault,
    MessageInfo,
    MessageQuery,
    Outcome,
    OutcomeQuery,
    Pause,
    Rejection,
    Reschedule,
    ScheduleQuery,
    ShardsQuery,
)
from chronos.admin.messages.info import message_info, tell_pause, tell_state
from chronos.admin.messages.lateness import tell_lateness
from chronos.admin.messages.scheduling import (
    TIMEOUT_S,
    WRITE_S_MIN,
    ManyExpressions,
    Planned,
    Rhythm,
    due_of,
    duration_ms,
    new_time,
    past_warnings,
    paused,
    plan_action,
    resumed,
)
from chronos.admin.messages.targets import TopicInfos, objection, planned_bytes
from chronos.core.cron import next_cron
from chronos.core.keys import generated_id, parse_generated_id, partition_of
from chronos.core.letters import Letter, source_of
from chronos.core.message import DELIVER_AT, TARGET_KEY, Entry, Reason
from chronos.core.query.lookup import FoundMessage, find, holds_for
from chronos.core.reach import EVERYTHING, Reach
from chronos.core.series import (
    repetition_of,
    upcoming,
)
from chronos.core.shard.order import call_token
from chronos.core.timefmt import format_time
from chronos.errors import ChronosError, LogUnavailable
from chronos.node.shards import ShardDriver
from chronos.ports import Appended

FIND_S = 1.0
"""How long a look-up waits until the shard has applied the records that were in the log when the
request came."""

ACT_S = 5.0
"""How long an action waits to be applied."""

FORWARDED_S = CONNECT_S + 2 * FIND_S + TIMEOUT_S + WRITE_S_MIN + ACT_S
"""How long another node may take to answer an action: two look-ups, the write, and the wait."""

SCHEDULE_AGAIN = (
    "try again with the same id: the message is scheduled once; without an id it may be scheduled "
    "twice"
)
ACT_AGAIN = "the action may be in the log all the same: look the message up before you repeat it"

LOOKS_AT_ONCE = 50
"""Messages of a batch that are looked up at a time, to replace them."""

ACTION_BYTES = 1_024
"""Estimate of the memory for the record of an action."""

IN_LOOP_BYTES = 32_768
"""A body up to this size is checked in the event loop; a larger one in a thread, so that it delays
no other request."""

IN_LOOP_EXPRESSIONS = 8
"""Different cron expressions that are checked in the event loop; each takes up to 0.3 ms."""

WORK_S, PAUSE_S = 0.001, 0.0005
"""A thread that checks a body pauses for PAUSE_S after WORK_S, so that no other thread waits longer
for the interpreter's lock."""

EXPRESSIONS_MAX = 500
"""Different cron expressions in one request."""

Answer = tuple[int, object] | web.Response

TimeHeader = tuple[str, bytes]
"""A header with a time, and its value."""

ONLY_STATE = MessageQuery()
"""A look-up of what is known of a message, without its payload."""

_decode_message_info = msgspec.json.Decoder(MessageInfo).decode
_decode_action_result = msgspec.json.Decoder(ActionResult).decode
_decode_outcome = msgspec.json.Decoder(Outcome).decode
_decode_reschedule = msgspec.json.Decoder(Reschedule).decode
_decode_pause = msgspec.json.Decoder(Pause).decode


class Messages:
    """The handlers under `/v1/messages`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # --- schedule

    async def schedule(self, call: Call) -> tuple[int, object]:
        """Schedule a message, or up to 10,000 at once."""
        context = self._context
        query: ScheduleQuery = call.query
        wait_s = None if query.wait is UNSET else _wait_s(query.wait)
        planned, is_batch = await self._plan(call)
        if call.sender.is_limited:
            await self._check_replaced(call, [one for one in planned if one.replaces])
        self._check_followers(planned)
        topics = {one.target for one in planned}
        context.targets.request(topics)
        records = [one.record for one in planned]
        size_bytes = sum(one.bytes for one in planned)
        call.share.grow(size_bytes)
        try:
            appended = await context.appender.append(records, size_bytes)
        except LogUnavailable as error:
            raise from_error(error, hint=SCHEDULE_AGAIN) from None
        described = await context.targets.known(topics)

        def answers() -> list[Accepted]:
            creates = context.creates_targets
            return [
                _accepted(one, where, described, creates)
                for one, where in zip(planned, appended, strict=True)
            ]

        in_loop = sum(one.first is not None for one in planned) <= IN_LOOP_EXPRESSIONS
        accepted = answers() if in_loop else await context.in_plan_thread(answers)
        if wait_s is not None:
            await self._add_outcomes(accepted, wait_s, call.sender.reach)
        is_known = all(answer.result != "accepted" for answer in accepted)
        return 200 if is_known else 202, accepted if is_batch else accepted[0]

    async def _add_outcomes(self, accepted: list[Accepted], wait_s: float, reach: Reach) -> None:
        """Complete the answers with the outcomes of the messages, for all shards at once; those
        whose shard cannot be asked stay as they are, because they are in the log."""

        async def add_one(answer: Accepted, ends_s: float) -> None:
            left_s = max(0.0, ends_s - loop.time())
            with suppress(ProblemError, ChronosError):
                message_id = whole_id_bytes(answer.id)
                found = await self._outcome(
                    answer.shard, message_id, answer.offset, left_s, reach=reach, is_own=True
                )
                answer.result, answer.detail = found.result, found.detail
                if found.due_at is not UNSET:
                    answer.due_at = found.due_at

        async def add_all(answers: list[Accepted]) -> None:
            # The first look waits for the last record of the shard: the shard has applied all of
            # them then.
            ends_s = loop.time() + wait_s
            for start in range(0, len(answers), LOOKS_AT_ONCE):
                await asyncio.gather(
                    *(add_one(answer, ends_s) for answer in answers[start : start + LOOKS_AT_ONCE])
                )

        loop = asyncio.get_running_loop()
        by_shard: dict[int, list[Accepted]] = {}
        for answer in reversed(accepted):
            by_shard.setdefault(answer.shard, []).append(answer)
        await asyncio.gather(*map(add_all, by_shard.values()))

    async def outcome(self, call: Call) -> tuple[int, object]:
        """Return the outcome of a record that schedules a message, once its shard has applied
        it."""
        query: OutcomeQuery = call.query
        message_id = id_of(call)
        shard, _ = self._shards_of(message_id)
        context_shards = self._context.peers.requested(query.shards)
        if query.shards is not UNSET:
            (shard, *_) = context_shards
        generated = parse_generated_id(message_id, len(self._context.shards))
        is_own = generated is not None and generated[2] == query.offset
        wait_s, reach = _wait_s(query.wait), call.sender.reach
        found = await self._outcome(
            shard, message_id, query.offset, wait_s, reach=reach, is_own=is_own
        )
        return 202 if found.result == "accepted" else 200, found

    async def _outcome(
        self,
        shard: int,
        message_id: bytes,
        offset: int,
        wait_s: float,
        *,
        reach: Reach,
        is_own: bool,
    ) -> Outcome:
        """1. Wait until the shard has applied the record, 2. look for its refusal, 3. look for the
        message that has the id.

        A replica knows the last refusals since its process began; for an earlier one the message
        that has the id decides. Runs on a node that holds the shard. `is_own`: the record is known
        to be the one of the id. ProblemError with status 404 if nothing is known of the id."""
        context = self._context
        if not context.peers.holds(shard):
            asked = {"offset": offset, "wait": int(wait_s * 1_000)}
            status, body = await context.peers.ask(
                [shard], f"{id_path(message_id)}/outcome", asked, reach=reach
            )
            if status == 404:
                raise _not_found(message_id, [])
            if status >= 300:
                raise ProblemError(
                    503, "no-holder", f"another node answered {status} for shard {shard}"
                )
            return _decode_outcome(body)
        answer = Outcome(result="accepted", id=id_text(message_id), shard=shard, offset=offset)
        # 1.
        if not await context.pull_waiters[shard].wait(offset + 1, wait_s):
            return answer
        # 2.
        driver = context.shards[shard]
        reason = driver.applied.refusal(offset)
        # 3.
        found = await context.in_thread(self._find, driver, message_id, reach)
        if found is None and (reach.is_limited and not is_own):
            # The record at the offset may be that of another sender.
            raise _not_found(message_id, [])
        if reason in (Reason.FORWARDED, Reason.HELD):
            answer.detail = "it is written on to the partition of its id"
        elif reason == Reason.REPEATED:
            # The first record of the call was accepted, and is that of the message unless another
            # one came in between.
            upsert = None if found is None else driver.applied.upsert(found.offset)
            answer.result = upsert or "scheduled"  # type: ignore[assignment]
            if found is not None and found.entry is not None:
                answer.due_at = format_time(found.entry.due_ms)
        elif reason not in (None, Reason.CONFLICT, Reason.IGNORED):
            answer.result, answer.detail = "rejected", Reason(reason).label
        elif (upsert := driver.applied.upsert(offset)) is not None:
            answer.result = upsert  # type: ignore[assignment]
            if found is not None and found.offset <= offset and found.entry is not None:
                answer.due_at = format_time(found.entry.due_ms)
        elif reason is None and found is None and not (is_own and driver.applied.remembers(offset)):
            raise _not_found(message_id, [])
        elif reason is None and (found is None or found.offset >= offset):
            answer.result = "scheduled"
        else:
            answer.result = "ignored" if reason == Reason.IGNORED else "conflict"
            answer.detail = _taken(found)
        return answer

    async def _check_replaced(self, call: Call, planned: list[Planned]) -> None:
        """ProblemError with status 403 if a message that would be replaced is for a target that is
        not the sender's own.

        Its id is: so nothing is told that the sender would not learn from the message that is
        refused as taken."""
        for start in range(0, len(planned), LOOKS_AT_ONCE):
            deadline_s = asyncio.get_running_loop().time() + FIND_S
            await asyncio.gather(
                *(
                    self._check_replaced_one(call, one, deadline_s)
                    for one in planned[start : start + LOOKS_AT_ONCE]
                )
            )

    async def _check_replaced_one(self, call: Call, planned: Planned, deadline_s: float) -> None:
        message_id = planned.record[1]
        assert message_id is not None
        home, _ = self._shards_of(message_id)
        found, behind = await self._look_in(
            [home], message_id, deadline_s, wanted=ONLY_STATE, reach=EVERYTHING
        )
        if (
            found is not None
            and found.target is not None
            and not call.sender.reach.admits_target(found.target.topic)
        ):
            raise forbidden(
                call.sender, f"is not for the message that has the id {id_text(message_id)[:200]}"
            )
        if found is None and behind:
            raise _not_found(message_id, behind)

    def _check_followers(self, planned: list[Planned]) -> None:
        """ProblemError with status 503 if a shard has too few followers in sync, and `replication`
        refuses messages for it."""
        watch = self._context.node.in_sync
        if watch is None or not watch.rules.refuses:
            return
        for shard in sorted({one.record[4] for one in planned}):
            if (why := watch.shortage(shard)) is not None:
                raise ProblemError(
                    503,
                    "too-few-in-sync",
                    f"shard {shard} has {why}; none of the messages was written",
                    hint="try again; `chronos status` shows the followers of each shard",
                )

    async def _plan(self, call: Call) -> tuple[list[Planned], bool]:
        """The messages of the body as records. What takes long is done in a thread, and ends when
        its client leaves or the node stops."""
        context, body, request = self._context, call.body, call.request
        key = key_of(request)
        pauses_s = 0.0

        def go_on() -> None:
            nonlocal pauses_s
            if context.stopping.is_set():
                raise ProblemError(503, "stopping", "nothing of this request was written")
            if request.transport is None:
                raise ConnectionAbortedError("the client has left")
            if time.perf_counter() >= pauses_s:
                time.sleep(PAUSE_S)
                pauses_s = time.perf_counter() + WORK_S

        if len(body) <= IN_LOOP_BYTES:
            with suppress(ManyExpressions):
                return context.planner.plan_body(
                    body,
                    context.now_ms(),
                    sender=call.sender,
                    expressions_max=IN_LOOP_EXPRESSIONS,
                    go_on=lambda: None,
                    call=key,
                )
        plan = partial(
            context.planner.plan_body,
            sender=call.sender,
            expressions_max=EXPRESSIONS_MAX,
            go_on=go_on,
            call=key,
        )
        try:
            return await context.in_plan_thread(plan, body, context.now_ms())
        except ManyExpressions:
            raise wrong_field(
                "repeat",
                (
                    f"more than {EXPRESSIONS_MAX} different cron expressions in one request; send "
                    "several requests"
                ),
            ) from None

    # --- find

    async def get(self, call: Call) -> tuple[int, object]:
        """Return state, times and target of a message, and why it was not delivered."""
        query: MessageQuery = call.query
        message_id = id_of(call)
        deadline_s = asyncio.get_running_loop().time() + FIND_S
        _, found, behind = await self._look(
            call, message_id, deadline_s, pending_first=False, wanted=query
        )
        rejected = None
        is_unknown = found is None and not behind and query.shards is UNSET
        if is_unknown or (found is not None and query.rejections):
            origin = source_of(message_id, len(self._context.shards), self._context.delay_topic)
            index = self._context.recent_rejections
            rejected = await self._context.in_thread(
                partial(index.find, message_id, origin, reach=call.sender.reach)
            )
        if found is None:
            if rejected is not None:
                raise _was_rejected(message_id, rejected)
            raise _not_found(message_id, behind)
        if rejected is not None and format_time(rejected.timestamp_ms) > (found.accepted_at or ""):
            found.rejection = Rejection(
                at=format_time(rejected.timestamp_ms),
                reason=rejected.reason,
                detail=rejected.detail,
            )
        return 200, found

    async def _look(
        self,
        call: Call,
        message_id: bytes,
        deadline_s: float,
        *,
        pending_first: bool,
        wanted: MessageQuery = ONLY_STATE,
    ) -> tuple[int, MessageInfo | None, list[int]]:
        """`(shard, message, shards that had not applied their log in time)`.

        Looks in the id's home shard first. What is unknown there may still be forwarded from
        another shard: so it looks again once the others have pulled what they hold now. A message
        that is not the sender's own is unknown, in every step and in the time that it takes."""
        query: ShardsQuery = call.query
        reach = call.sender.reach
        allowed = set(self._context.peers.requested(query.shards))
        home, others = self._shards_of(message_id)
        found: MessageInfo | None = None
        behind: list[int] = []
        if home in allowed:
            found, behind = await self._look_in(
                [home], message_id, deadline_s, wanted=wanted, reach=reach
            )
            if behind or (found is not None and (found.state == "pending" or not pending_first)):
                return home, found, behind
        others = [shard for shard in others if shard in allowed]
        if others:
            _, behind = await self._look_in(
                others, message_id, deadline_s, wanted=ONLY_STATE, reach=reach
            )
            if home in allowed:
                found, home_behind = await self._look_in(
                    [home], message_id, deadline_s, wanted=wanted, reach=reach
                )
                behind = behind or home_behind
        return home, found, behind

    async def _look_in(
        self,
        shards: list[int],
        message_id: bytes,
        deadline_s: float,
        *,
        wanted: MessageQuery,
        reach: Reach,
    ) -> tuple[MessageInfo | None, list[int]]:
        """The message as one of these shards knows it, a pending one first; those that had not
        applied their log in time, or that hold records for the partition of its id."""
        context = self._context
        held, missing = context.peers.split(shards)
        groups, asked = context.peers.groups(missing), _asked(wanted)
        caught_up, answers = await asyncio.gather(
            asyncio.gather(*(context.caught_up(shard, deadline_s) for shard in held)),
            asyncio.gather(
                *(
                    context.peers.ask(group, id_path(message_id), asked, reach=reach)
                    for group in groups
                )
            ),
        )
        home, _ = self._shards_of(message_id)
        found, holding = await context.in_thread(
            lambda: (
                [self._message_info(shard, message_id, wanted, reach) for shard in held],
                [
                    holds_for(context.shards[shard].store, context.shards[shard].state, home)
                    for shard in held
                ],
            )
        )
        for status, body in answers:
            if status == 200:
                found.append(_decode_message_info(body))
            elif status != 404:
                raise ProblemError(
                    503, "no-holder", f"another node answered {status} for shards {missing}"
                )
        known = sorted(
            (each for each in found if each is not None), key=lambda each: each.state != "pending"
        )
        behind = [
            shard
            for shard, is_current, holds in zip(held, caught_up, holding, strict=True)
            if holds or not is_current
        ]
        return known[0] if known else None, behind

    def _message_info(
        self, shard: int, message_id: bytes, wanted: MessageQuery, reach: Reach
    ) -> MessageInfo | None:
        driver = self._context.shards[shard]
        found = self._find(driver, message_id, reach)
        if found is None:
            return None
        answer = message_info(found.id, shard, found.offset, found.place_ms, found.entry)
        if found.state == "pending":
            tell_pause(answer, found.entry, self._context.now_ms())
        tell_state(answer, found, partitions_of=driver.replica.target_partitions)
        tell_lateness(answer, found, self._context, driver, reach)
        if wanted.payload and found.entry is not None:
            answer.value, answer.value_base64 = text_or_base64(found.entry.value)
            if answer.value_base64 is not UNSET:
                answer.value = UNSET
        if wanted.occurrences and answer.repetition is not None and found.state == "pending":
            assert found.entry is not None, "a pending message has an entry"
            # Without the time zone the times are not known here.
            with suppress(ValueError):
                times = upcoming(found.entry, self._context.now_ms(), wanted.occurrences, next_cron)
                answer.occurrences_at = [format_time(time_ms) for time_ms in times]
        return answer

    def _shards_of(self, message_id: bytes) -> tuple[int, list[int]]:
        """The id's home shard, and the other shards from which records of it may still be
        forwarded."""
        count = len(self._context.shards)
        address = parse_generated_id(message_id, count)
        if address is not None:
            return address[0], []
        home = partition_of(message_id, count)
        if self._context.rules[home].misplaced != "forward":
            return home, []
        return home, [shard for shard in range(count) if shard != home]

    def _find(self, shard: ShardDriver, message_id: bytes, reach: Reach) -> FoundMessage | None:
        return find(
            shard.store,
            shard.state,
            shard.number,
            len(self._context.shards),
            message_id,
            reach=reach,
        )

    # --- act

    async def cancel(self, call: Call) -> Answer:
        """Cancel a message."""
        return await self._act(call, "cancel", "cancelled")

    async def fire(self, call: Call) -> Answer:
        """Deliver a message now."""
        return await self._act(call, "fire-now", "fired", path="/fire")

    async def reschedule(self, call: Call) -> Answer:
        """Give a message a new time."""
        request = decode_body(_decode_reschedule, Reschedule, call.body)
        return await self._act(call, "reschedule", "rescheduled", new_time(request))

    async def pause(self, call: Call) -> Answer:
        """Leave out the occurrences of a series until a time, or until it is resumed."""
        request = decode_body(_decode_pause, Pause, call.body or b"{}")
        now_ms = self._context.now_ms()
        rhythm = paused(request.until, now_ms, self._context.rules[0])
        return await self._act(call, "reschedule", "paused", rhythm, path="/pause")

    async def resume(self, call: Call) -> Answer:
        """Let a paused series go on; one that is not paused stays as it is."""
        rhythm = resumed(self._context.now_ms())
        return await self._act(call, "reschedule", "resumed", rhythm, path="/resume")

    async def _act(
        self,
        call: Call,
        verb: str,
        success: str,
        time: TimeHeader | Rhythm | None = None,
        *,
        path: str = "",
    ) -> Answer:
        """1. find the shard, 2. write the action, 3. wait until it is applied, 4. answer with its
        result.

        Steps 2 to 4 run on a node that holds the shard, because only its replica shows the result.

        `path`: what the action has behind the path of the message."""
        context = self._context
        query: ShardsQuery = call.query
        reach = call.sender.reach
        message_id = id_of(call)
        # Firing is not recognized as repeated.
        key = None if verb == "fire-now" else key_of(call.request)
        token = None if key is None else call_token(key.encode())
        loop = asyncio.get_running_loop()
        shard, others = self._shards_of(message_id)
        behind: list[int] = []
        if reach.is_limited or (others and query.shards is UNSET):
            shard, found, behind = await self._look(
                call, message_id, loop.time() + FIND_S, pending_first=True
            )
            if (
                reach.is_limited
                and found is None
                and not context.knows_call(shard, message_id, token)
            ):
                raise _not_found(message_id, behind)
        if query.shards is not UNSET:
            (shard, *_) = context.peers.requested(query.shards)
        if not context.peers.holds(shard):
            status, body = await context.peers.act(
                shard,
                call.request.method,
                id_path(message_id) + path,
                call.body or None,
                reach=reach,
                key=key,
                answer_s=FORWARDED_S,
                again=ACT_AGAIN,
            )
            if (
                status == 200
                and behind
                and (told := _decode_action_result(body)).result == "unknown"
            ):
                told.result = "accepted"
                return 202, told
            kind = "application/json" if status < 400 else PROBLEM_JSON
            return web.Response(status=status, body=body, content_type=kind)
        in_rhythm: TimeHeader | None = None
        if isinstance(time, Rhythm):
            try:
                series = await self._series(shard, message_id)
            except ProblemError:
                if not context.knows_call(shard, message_id, token):
                    raise
                return 200, ActionResult(
                    result=success,  # type: ignore[arg-type]
                    id=id_text(message_id),
                    shard=shard,
                )
            time = in_rhythm = await context.in_thread(time.time, series, context.rules[shard])
            if in_rhythm is None:
                return 200, ActionResult(
                    result=success,  # type: ignore[arg-type]
                    id=id_text(message_id),
                    shard=shard,
                    due_at=format_time(series.due_ms),
                )
        record = plan_action(
            message_id,
            verb,
            time,
            context.rules[shard],
            context.delay_topic,
            context.now_ms(),
            key,
            context.knows_call,
        )
        call.share.grow(ACTION_BYTES)
        try:
            (appended,) = await context.appender.append([record], ACTION_BYTES)
        except LogUnavailable as error:
            raise from_error(error, hint=ACT_AGAIN) from None
        answer = ActionResult(
            result="accepted", id=id_text(message_id), shard=shard, offset=appended.offset
        )
        if time is not None and time[0] == DELIVER_AT:
            answer.warnings = past_warnings(int(time[1]), appended.timestamp_ms)
        if in_rhythm is not None:
            answer.due_at = format_time(due_of(in_rhythm, appended.timestamp_ms))
        if not await context.pull_waiters[shard].wait(appended.offset + 1, ACT_S):
            return 202, answer
        reason = context.shards[shard].applied.refusal(appended.offset)
        if reason is None or reason == Reason.REPEATED:
            answer.result = success  # type: ignore[assignment]
            if reason is not None and in_rhythm is not None:
                answer.due_at = format_time(series.due_ms)
        elif verb == "cancel" and await self._is_cancelled(context.shards[shard], message_id):
            answer.result = "cancelled"
        elif reason == Reason.TOO_LATE:
            answer.result = "too_late"
        elif reason == Reason.UNKNOWN and behind:
            return 202, answer  # the message may still be forwarded here
        elif reason == Reason.UNKNOWN:
            answer.result = "unknown"
        else:
            answer.result, answer.detail = "refused", Reason(reason).label
        return 200, answer

    async def _series(self, shard: int, message_id: bytes) -> Entry:
        """A pending message of this node. ProblemError if none has the id."""
        context = self._context
        deadline_s = asyncio.get_running_loop().time() + FIND_S
        is_current = await context.caught_up(shard, deadline_s)
        found = await context.in_thread(self._find, context.shards[shard], message_id, EVERYTHING)
        if found is None:
            raise _not_found(message_id, [] if is_current else [shard])
        if found.state != "pending":
            raise ProblemError(
                409, "not-pending", f"{id_text(message_id)} is no longer pending: {found.state}"
            )
        assert found.entry is not None, "a pending message has an entry"
        return found.entry

    async def _is_cancelled(self, shard: ShardDriver, message_id: bytes) -> bool:
        """True if the message is cancelled: then a cancel that had no effect, whatever the reason,
        succeeds all the same."""
        # The message was the sender's own before; one that is cancelled has no target.
        found = await self._context.in_thread(self._find, shard, message_id, EVERYTHING)
        return found is not None and found.state == "cancelled"


def _taken(found: FoundMessage | None) -> str:
    """Why the id of a message is taken."""
    if found is None:
        return "another message has this id"
    if found.state != "pending" and found.entry is not None and repetition_of(found.entry):
        return f"the series with this id ended, its last occurrence is {found.state}"
    return f"another message has this id and is {found.state}"


def _asked(wanted: MessageQuery) -> dict[str, object]:
    """The parameters for another node."""
    asked: dict[str, object] = {"payload": "true"} if wanted.payload else {}
    return asked | {"occurrences": wanted.occurrences} if wanted.occurrences else asked


def _not_found(message_id: bytes, behind: list[int]) -> ProblemError:
    """`behind`: shards whose records, not applied yet, may be about the id."""
    if behind:
        return ProblemError(
            503,
            "not-applied",
            f"nothing is known of {id_text(message_id)} so far: {_shards(behind)} in time",
            hint="try again; if it persists, run `chronos status`",
        )
    return ProblemError(
        404,
        "not-found",
        f"nothing is known of {id_text(message_id)}",
        hint=(
            "it was never scheduled, was rejected before (`chronos rejected show` looks in the "
            "rejected topic), or its retention is over"
        ),
    )


def _was_rejected(message_id: bytes, rejected: Letter) -> ProblemError:
    """Return a ProblemError with status 404 for an id without a known message whose record was
    rejected."""
    text = f"{rejected.reason}: {rejected.detail}"
    return ProblemError(
        404,
        "not-found",
        (
            f"the record of {id_text(message_id)} was rejected at "
            f"{format_time(rejected.timestamp_ms)}: {text}"
        ),
        hint="`chronos rejected show` has the record",
        errors=[Fault(detail=rejected.detail, reason=rejected.reason)],
    )


def _shards(behind: list[int]) -> str:
    named = ", ".join(map(str, sorted(behind)))
    return (
        f"shard {named} has not applied its log"
        if len(behind) == 1
        else f"shards {named} have not applied their logs"
    )


def _wait_s(wait: int | str) -> float:
    """The wait of a request in seconds; ProblemError if it is too long."""
    wait_ms = converted("wait", duration_ms, wait)
    if wait_ms > ACT_S * 1_000:
        raise wrong_field("wait", f"must be at most {ACT_S:g}s; ask again with the offset")
    return wait_ms / 1_000


def _accepted(
    planned: Planned, appended: Appended, described: TopicInfos, creates: bool
) -> Accepted:
    due_ms = planned.due_ms + appended.timestamp_ms if planned.is_delay else planned.due_ms
    first_ms = None if planned.first is None else next_cron(*planned.first, appended.timestamp_ms)
    return Accepted(
        id=planned.id or generated_id(appended.partition, due_ms, appended.offset).decode(),
        shard=appended.partition,
        offset=appended.offset,
        due_at=format_time(due_ms if first_ms is None else first_ms),
        warnings=_warnings(
            planned,
            UNSET if planned.is_delay else past_warnings(due_ms, appended.timestamp_ms),
            described,
            creates,
        ),
    )


def _warnings(
    planned: Planned, past: list[str] | UnsetType, described: TopicInfos, creates: bool
) -> list[str] | UnsetType:
    """Return the warnings about a message: `past`, and why its target would refuse it; nearly
    always none."""
    record = planned.record
    found = objection(
        planned.target,
        described,
        bytes_about=planned.bytes,
        has_key=lambda: any(name == TARGET_KEY for name in dict(record[3])),
        size=lambda: planned_bytes(record),
        creates=creates,
    )
    if found is None:
        return past
    return [found[1], *(past or ())]


def id_of(call: Call) -> bytes:
    """The id in the path: percent-encoded UTF-8, or `base64:` and the bytes in base64. ProblemError
    with status 403 if it is not for the sender."""
    data = unquote_to_bytes(call.request.rel_url.raw_path.split("/")[3])
    try:
        message_id = whole_id_bytes(data.decode())
    except UnicodeDecodeError:
        raise wrong_field(
            "id", f"is not UTF-8; write other bytes as {BASE64_ID} and their base64"
        ) from None
    except ValueError as error:
        raise wrong_field("id", str(error)) from None
    check_id(call.sender, message_id)
    return message_id
