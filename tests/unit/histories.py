"""Random histories of a shard: the records of producers, the steps of the master, and disturbances
in between.

Times and ids lie close together, so that collisions are frequent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from msgspec.structs import replace

from chronos.core.keys import LIMITED, WHOLE_TOPIC
from chronos.core.message import LATE_POLICIES, LatePolicy, Reason, Record, Repeat
from chronos.core.series import format_repetition, parse_repetition
from chronos.core.shard.shard import Shard
from tests.unit.model import LAST, MINUTE_MS, SHARD, SKEW_MS, TO_REJECTED, Intent

SHARDS = 3
START_MS = 1_000 * MINUTE_MS - 20
"""Shortly before the end of a minute, so that close messages are counted in two minutes."""

MAX_DELAY_MS, MAX_PAST_MS, DEDUPLICATION_MS = 30 * MINUTE_MS, 10 * MINUTE_MS, 15
LANES = (WHOLE_TOPIC, 0, 1, LIMITED)
"""The partitions whose lanes messages are parked in."""
USER_IDS = (b"a", b"c", b"0-5")
ELSEWHERE, ELSEWHERE_ID, ELSEWHERE_ADDRESS = 2, b"b", b"2-77-77"
"""Another shard, a key and a generated id that belong to it."""
SCHEDULING = ("schedule", "replace", "replay")
TAKING = ("replace", "settled")
"""Verbs that take no generated id."""


@dataclass(frozen=True)
class Sent:
    """One record, before it has an offset and a time."""

    verb: str
    id_number: int
    in_ms: int
    after_ms: int
    policy: str = "reject"
    form: int = 0
    flaw: str = ""
    lasts_ms: int | None = None
    size: int = 0
    gap: int = 1
    repeat: str = ""
    late: str = ""
    spread_ms: int = 0
    hop_ms: int | None = None
    hop_from: int = 0
    elsewhere: bool = False
    spelling: int = 0
    is_backfill: bool = False
    call: int = 0
    """The number of its call; 0: it names none."""


@dataclass(frozen=True)
class Step:
    """Records, then one step of the master, which may be aborted before its commit."""

    sent: tuple[Sent, ...]
    waited_ms: int
    messages_max: int
    bytes_max: int
    outcomes: tuple[tuple[str, int], ...]
    disturbances: tuple[tuple[str, int], ...]
    behind: bool
    aborted: bool
    records_max: int = 1_000
    unreadable: int = 0
    """Offsets that follow and cannot be read; the step is about them if nothing else is left to be
    pulled."""
    lanes: tuple[int, ...] = LANES
    """The partitions whose lanes are open."""
    closed: tuple[int, ...] = ()
    """The destinations that take no records."""
    oversized: bool = False
    """The last held record that is written on has become too large for its partition."""
    allowed: int | None = None
    """Messages that have not expired and may leave the lane of a limited target; None: as many as
    there are."""


def _often(usual: str, *seldom: str) -> st.SearchStrategy[str]:
    return st.sampled_from([usual] * (2 * len(seldom)) + list(seldom))


_in_ms = st.one_of(
    st.integers(-4, 12), st.integers(-4, 12), st.sampled_from([MINUTE_MS, 5 * MINUTE_MS])
)

sents = st.builds(
    Sent,
    verb=st.sampled_from(
        ["schedule"] * 6
        + ["replace", "reschedule", "reschedule", "cancel", "cancel", "fire-now", "probe", "replay"]
        + ["settled"]
    ),
    id_number=st.integers(0, 9),
    in_ms=_in_ms,
    after_ms=st.sampled_from([0, 0, 0, 1, 4]),
    policy=st.sampled_from(["reject", "replace", "ignore", "upsert"]),
    form=st.integers(0, 2),
    flaw=_often(
        "", "forbidden", "far", "past", "unknown-header", "near-header", "create-time", "forged-hop"
    ),
    lasts_ms=st.sampled_from([None, None, None, 0, 3, 8]),
    size=st.sampled_from([0, 0, 30, 300]),
    gap=st.sampled_from([1, 1, 1, 2]),
    repeat=_often("", "every 100ms", "backoff 100ms 1.5 1s", "cron */5 * * * *"),
    late=st.sampled_from(["", "fire-all", "skip"]),
    spread_ms=st.sampled_from([0, 0, 0, 2, 9]),
    hop_ms=st.sampled_from([None] * 8 + [0, 0, 1, 4, 400, 700, -3, -450, -501]),
    hop_from=st.sampled_from([0, 2]),
    elsewhere=st.sampled_from([False, False, False, False, True]),
    spelling=st.sampled_from([0, 0, 0, 1, 2, 3]),
    is_backfill=st.sampled_from([False, False, False, True]),
    call=st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 5, 6]),
)

disturbances = st.sampled_from(
    [
        ("clear", 0),
        ("shrink", 1),
        ("shrink", 2),
        ("ahead", 3),
        ("ahead", 9),
        ("ahead", MINUTE_MS),
        ("restart", 0),
    ]
)

outcomes = st.tuples(
    st.sampled_from(
        ["delivered"] * 4
        + ["parked"] * 3
        + ["again", "retry", "deferred", "skipped", "expired", "dead"]
    ),
    _in_ms,
)

steps = st.builds(
    Step,
    sent=st.lists(sents, max_size=6).map(tuple),
    waited_ms=st.one_of(st.integers(-3, 8), st.just(MINUTE_MS)),
    messages_max=st.sampled_from([1, 2, 3, 5, 100]),
    bytes_max=st.sampled_from([1, 120, 400, 1_000_000]),
    outcomes=st.lists(outcomes, min_size=1, max_size=4).map(tuple),
    disturbances=st.lists(disturbances, max_size=2).map(tuple),
    behind=st.booleans(),
    aborted=st.sampled_from([False, False, False, True]),
    records_max=st.sampled_from([1, 2, 3, 1_000, 1_000, 1_000]),
    unreadable=st.sampled_from([0, 0, 0, 0, 1, 3]),
    lanes=st.sampled_from([(), (0,), (1, -1), (0, LIMITED), LANES]),
    closed=st.sampled_from([(), (), (ELSEWHERE,), (TO_REJECTED,), (ELSEWHERE, TO_REJECTED)]),
    oversized=st.sampled_from([False, False, True]),
    allowed=st.sampled_from([None, 0, 1, 3]),
)

histories = st.lists(steps, min_size=1, max_size=12)


class Producers:
    """Writes records as clients would, and keeps the intent of each."""

    def __init__(self) -> None:
        self.intents: list[Intent] = []
        self.records: list[Record] = []
        self._offset = 0
        self._timestamp_ms = START_MS
        self._firsts_ms: dict[int, int] = {}
        """Shard -> first timestamp of the latest record that came to its partition first."""

    def send(self, sent: Sent, now_ms: int) -> None:
        self._offset += sent.gap
        # The broker's clock follows this one, a little behind, and never steps back.
        self._timestamp_ms = max(self._timestamp_ms + sent.after_ms, now_ms - 3)
        intent = self._intent(sent)
        by_delay = sent.form == 2 and intent.due_ms >= intent.first_ms
        intent = dataclasses.replace(intent, is_at=not (intent.first_is_left or by_delay))
        self.intents.append(intent)
        self.records.append(_as_spelled(render(intent, sent.form), sent))

    def skip_to(self, offset: int) -> None:
        """The next record comes behind this offset."""
        self._offset = max(self._offset, offset)

    def _intent(self, sent: Sent) -> Intent:
        due_ms = self._timestamp_ms + sent.in_ms
        flaw = (
            sent.flaw
            if sent.verb in SCHEDULING or sent.flaw in ("create-time", "forged-hop")
            else ""
        )
        may_be_past = (
            sent.verb == "replay"
            or bool(sent.repeat)
            or (sent.verb == "schedule" and sent.is_backfill)
        )
        rejection = {
            "forbidden": Reason.FORBIDDEN_TARGET,
            "far": Reason.BEYOND_MAX_DELAY,
            "past": None if may_be_past else Reason.PAST,
            "unknown-header": Reason.UNKNOWN_HEADER,
            "near-header": Reason.UNKNOWN_HEADER,
            "create-time": Reason.CREATE_TIME,
            "forged-hop": Reason.BAD_VALUE,
        }.get(flaw)
        is_message = sent.verb in SCHEDULING
        spread_ms = sent.spread_ms if is_message else 0
        repetition = parse_repetition(sent.repeat) if sent.repeat and is_message else None
        if repetition is not None and sent.late:
            repetition = replace(repetition, late_policy=LATE_POLICIES[sent.late.encode()])
        hop_ms = self._hop_ms(sent)
        first_is_left = (
            repetition is not None
            and repetition.kind == Repeat.CRON
            and flaw != "far"
            and sent.form != 1
        )
        if first_is_left:
            due_ms = self._timestamp_ms - (
                hop_ms if hop_ms is not None and hop_ms >= -SKEW_MS else 0
            )
        elif flaw in ("far", "past"):
            due_ms += 2 * MAX_DELAY_MS if flaw == "far" else -2 * MAX_PAST_MS
        message_id = self._id(sent)
        expires = is_message and sent.lasts_ms is not None and flaw != "far" and not first_is_left
        return Intent(
            offset=self._offset,
            timestamp_ms=self._timestamp_ms,
            verb=sent.verb,
            id=message_id,
            hop_ms=hop_ms,
            hop_from=sent.hop_from,
            elsewhere=ELSEWHERE if message_id in (ELSEWHERE_ID, ELSEWHERE_ADDRESS) else None,
            due_ms=due_ms,
            expire_at_ms=due_ms + spread_ms + (sent.lasts_ms or 0) if expires else None,
            policy=sent.policy,
            target="secret" if flaw == "forbidden" else "orders",
            value=b"x" * sent.size,
            repetition=repetition,
            first_is_left=first_is_left,
            spread_ms=spread_ms,
            call=b"call-%d" % sent.call if sent.call and sent.verb != "probe" else None,
            rejection=rejection,
            replayed=b"source-%d" % (sent.form % 2) if sent.verb == "replay" else None,
        )

    def _hop_ms(self, sent: Sent) -> int | None:
        """How long before its own time the first timestamp of a record is. The clock of the
        partition that it came to first steps back by at most SKEW_MS: it has another leader
        then."""
        if sent.hop_ms is None:
            return None
        latest_ms = self._firsts_ms.get(sent.hop_from, 0)
        hop_ms = min(sent.hop_ms, self._timestamp_ms - latest_ms + SKEW_MS)
        first_ms = self._timestamp_ms - (hop_ms if hop_ms >= -SKEW_MS else 0)
        self._firsts_ms[sent.hop_from] = max(latest_ms, first_ms)
        return hop_ms

    def _id(self, sent: Sent) -> bytes | None:
        """A user's id, or the generated id of an earlier message, which may have a key and so
        another id."""
        if sent.elsewhere and (sent.id_number < len(USER_IDS) or sent.verb in TAKING):
            return ELSEWHERE_ID
        if sent.elsewhere and sent.verb != "schedule":
            return ELSEWHERE_ADDRESS
        if sent.id_number < len(USER_IDS):
            return USER_IDS[sent.id_number]
        if sent.verb == "schedule":
            return None
        if sent.verb in TAKING:
            return USER_IDS[sent.id_number % len(USER_IDS)]
        scheduled = [intent for intent in self.intents if intent.verb in ("schedule", "replace")]
        if not scheduled:
            return b"%d-77-77" % SHARD
        named = scheduled[-(sent.id_number - len(USER_IDS)) % len(scheduled)]
        return b"%d-%d-%d" % (SHARD, named.due_ms, named.offset)


def render(intent: Intent, form: int = 0) -> Record:
    """The record for what is asked, in one of the forms that mean the same."""
    headers: list[tuple[str, bytes | None]] = []
    key, value = intent.id, intent.value
    if intent.verb != "schedule" or form == 1:
        headers.append(("chronos-action", intent.verb.encode()))
    if intent.verb in SCHEDULING:
        headers.append(("chronos-target-topic", intent.target.encode()))
        if intent.rejection is Reason.UNKNOWN_HEADER:
            headers.append(("chronos-wish", b"1"))
        if intent.expire_at_ms is not None:
            headers.append(("chronos-expire-at", b"%d" % intent.expire_at_ms))
        if intent.spread_ms:
            headers.append(("chronos-spread", b"%d" % intent.spread_ms))
        if intent.repetition is not None:
            headers.append(("chronos-repeat", format_repetition(intent.repetition).encode()))
            policy = LatePolicy(intent.repetition.late_policy)
            if policy is not LatePolicy.FIRE_ONCE or form == 1:
                headers.append(
                    ("chronos-late-policy", policy.name.lower().replace("_", "-").encode())
                )
    if intent.verb in (*SCHEDULING, "reschedule") and not intent.first_is_left:
        delay_ms = intent.due_ms - intent.first_ms
        by_delay = form == 2 and delay_ms >= 0
        name, time_ms = (
            ("chronos-delay", delay_ms) if by_delay else ("chronos-deliver-at", intent.due_ms)
        )
        headers.append((name, b"%d" % time_ms))
    if (
        intent.verb == "schedule"
        and intent.id is not None
        and (intent.policy != "reject" or form == 1)
    ):
        headers.append(("chronos-on-conflict", intent.policy.encode()))
    if intent.verb in ("reschedule", "cancel", "fire-now", "settled") and form > 0:
        assert intent.id is not None
        headers.append(("chronos-id", intent.id))
        key = None if form == 1 else key
    if intent.replayed is not None:
        headers.append(("chronos-replayed", intent.replayed))
        if intent.id is not None and intent.id not in (*USER_IDS, ELSEWHERE_ID):
            key = None
            headers.append(("chronos-id", intent.id))
    if intent.verb == "cancel" and form == 0:
        headers, value = [], None
    if intent.call is not None:
        headers.append(("chronos-call", intent.call))
    if intent.rejection is Reason.BAD_VALUE:
        # No hop is refused for its time.
        forged = (
            b"d/%d/7;%d" % (SHARD, intent.timestamp_ms),
            b"e/0/7;%d" % intent.timestamp_ms,
            b"d/0/7",
        )
        headers.append(("chronos-forwarded", forged[form]))
    elif intent.hop_ms is not None:
        headers.append(
            (
                "chronos-forwarded",
                b"d/%d/7;%d" % (intent.hop_from, intent.timestamp_ms - intent.hop_ms),
            )
        )
    if intent.rejection is Reason.CREATE_TIME:
        return Record(
            intent.offset, intent.timestamp_ms * 1_000, key, value, headers, create_time=True
        )
    return Record(intent.offset, intent.timestamp_ms, key, value, headers)


def _as_spelled(record: Record, sent: Sent) -> Record:
    """The same record with headers in another case or with underscores, as a backfill, or with a
    mistyped header."""
    headers = list(record.headers or ())
    if sent.is_backfill and sent.verb == "schedule":
        headers = [
            ("chronos-action", b"backfill"),
            *(pair for pair in headers if pair[0] != "chronos-action"),
        ]
    if sent.spelling:
        spell = (str.title, str.upper, lambda name: name.replace("-", "_"))[sent.spelling - 1]
        headers = [
            (name if name == "chronos-forwarded" else spell(name), value) for name, value in headers
        ]
    if sent.flaw == "near-header" and sent.verb in SCHEDULING:
        headers.append((("chronos_dely", "Chronosspread", "hronos-expire-at")[sent.form], b"1"))
    return replace(record, headers=headers)


def disturb(shard: Shard, what: str, amount: int, now_ms: int) -> None:
    """Disturb the wheel in a way that is allowed at any moment and must change no result."""
    if what == "clear":
        shard.wheel.clear(shard.state.cursor)
    elif what == "shrink":
        shard.wheel.shrink(amount)
    else:
        assert what == "ahead"
        for _ in range(amount % 4 + 1):
            if not shard.read_ahead(now_ms + amount, 20):
                break


def check_wheel(shard: Shard, pending: Sequence[tuple[int, int, bytes]]) -> None:
    """The wheel holds every pending message up to `through`, and nothing else."""
    wheel = shard.wheel
    held = [item for item in pending if item[:2] <= wheel.through]
    assert wheel.peek(LAST, 1_000_000) == held
    assert (wheel.messages, wheel.bytes) == (len(held), sum(len(item[2]) for item in held))
    assert wheel.next_due_ms() == (held[0][0] if held else None)
    assert wheel.through >= shard.state.cursor
    next_due_ms = shard.next_due_ms()
    if not pending:
        assert next_due_ms is None
    else:
        assert next_due_ms is not None
        assert next_due_ms <= pending[0][0]
        assert not held or next_due_ms == held[0][0]
