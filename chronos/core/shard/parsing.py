"""The parser: makes a command of one record of the delay topic, from its headers, its key and its
value. A record that cannot be understood becomes a rejection.

A master checks what depends on its settings, on the zone data and on the cron library; replay
repeats none of it (law 9).

The command depends on the record and the rules alone: `staging` knows whether an id is taken or a
message is still pending. Keeps its part of law 1: every record becomes a command or a rejection,
and parsing never raises."""

from collections.abc import Mapping

from msgspec.structs import replace

from chronos.core.keys import ID_BYTES_MAX, parse_generated_id
from chronos.core.message import (
    ACTION,
    ATTEMPTS,
    CALL,
    CONFLICT_POLICIES,
    DELAY,
    DELIVER_AT,
    EXPIRE_AT,
    FORWARDED,
    HEADERS,
    ID,
    LATE_POLICIES,
    LATE_POLICY,
    ON_CONFLICT,
    OPTIONAL,
    PREFIX,
    PROBE_ACTION,
    RECEIPT,
    REPEAT,
    REPEAT_TIMES,
    REPEAT_UNTIL,
    REPLAYED,
    SCHEDULING,
    SPREAD,
    TARGET_KEY,
    TARGET_TOPIC,
    TIME_ZONE,
    VERBS,
    Action,
    Command,
    ConditionalSchedule,
    Entry,
    Headers,
    IdOrder,
    Misplaced,
    OnConflict,
    Options,
    Reason,
    Record,
    Rejection,
    Repeat,
    Repetition,
    Verb,
    header_of,
)
from chronos.core.series import longest_ms, parse_repetition
from chronos.core.shard.order import call_token, hop_of, misplaced
from chronos.core.shard.rules import ATTEMPTS_MAX, Rules
from chronos.core.timefmt import (
    BARE_MS_MIN,
    format_duration,
    format_time,
    lacks_unit,
    parse_duration_ms,
)
from chronos.core.values import bad_value, names, shown, text_of, time_of

TIMES_MAX = 1_000_000_000
"""Greatest `chronos-repeat-times`."""

ZONE_CHARACTERS_MAX = 100
"""Longest name of a time zone."""

CALL_BYTES_MAX = 300
"""Longest `chronos-call`."""

_WITHOUT_CALL = (Verb.REPLAY, Verb.FIRE_NOW, Verb.SETTLED)
"""Verbs whose calls are not remembered."""

_OF_A_SERIES = (REPEAT_TIMES, REPEAT_UNTIL, TIME_ZONE, LATE_POLICY)


def has_cron(command: Command) -> bool:
    """Return whether a cron expression was checked for the command, whatever came of it."""
    if type(command) is Rejection:
        return command.detail.startswith((REPEAT, TIME_ZONE))
    entry = command.entry if type(command) is ConditionalSchedule else command
    options = entry.options if type(entry) is Entry else None
    return (
        options is not None
        and options.repetition is not None
        and options.repetition.kind == Repeat.CRON
    )


def repeats_by_cron(control: Mapping[str, bytes | None]) -> bool:
    """Return whether the message is a series whose first time may be left to its cron
    expression."""
    return (control.get(REPEAT) or b"").lstrip()[:4] == b"cron"


def has_time(control: Mapping[str, bytes | None]) -> bool:
    """Return whether the headers give a due time."""
    return DELIVER_AT in control or DELAY in control


def parse_options(
    record: Record,
    control: Mapping[str, bytes | None],
    due_ms: int,
    expire_at_ms: int | None,
    rules: Rules,
) -> Options | Rejection | None:
    """Return what the message asks for besides its time and target; None for a plain one."""
    attempts_max, spread_ms, repetition = 0, 0, None
    if ATTEMPTS in control:
        try:
            attempts_max = _attempts(control[ATTEMPTS], rules)
        except ValueError as error:
            return Rejection(Reason.BAD_VALUE, f"{ATTEMPTS}: {error}")
    if SPREAD in control:
        try:
            spread = text_of(control[SPREAD])
            spread_ms = parse_duration_ms(spread)
        except ValueError as error:
            return bad_value(SPREAD, error)
        if lacks_unit(spread):
            rules.count_unitless(control.get(TARGET_TOPIC))
        if spread_ms > rules.max_delay_ms:
            return _beyond(SPREAD, rules)
        if expire_at_ms is not None and expire_at_ms < due_ms + spread_ms:
            return Rejection(
                Reason.CONTRADICTORY_HEADERS, f"{EXPIRE_AT} is before the end of {SPREAD}"
            )
    if REPEAT in control:
        parsed = _parse_repetition(record, control, due_ms, rules)
        if isinstance(parsed, Rejection):
            return parsed
        rejection = _check_first_time(parsed, control, record, expire_at_ms, rules)
        if rejection is not None:
            return rejection
        repetition = parsed
    else:
        stray = next((name for name in _OF_A_SERIES if name in control), None)
        if stray is not None:
            return Rejection(Reason.CONTRADICTORY_HEADERS, f"{stray} without {REPEAT}")
    if not attempts_max and not spread_ms and repetition is None:
        return None
    return Options(attempts_max=attempts_max, spread_ms=spread_ms, repetition=repetition)


def _attempts(raw: bytes | None, rules: Rules) -> int:
    """Return a number of attempts. Raises ValueError, with a text for users."""
    text = text_of(raw)
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= ATTEMPTS_MAX):
        raise ValueError(f"{shown(raw)} is not a number from 1 to {ATTEMPTS_MAX}")
    if int(text) > rules.attempts_max:
        raise ValueError(
            f"{text} is more than {rules.attempts_max}, the limit set by delivery.attempts_max"
        )
    return int(text)


def _parse_repetition(
    record: Record, control: Mapping[str, bytes | None], due_ms: int, rules: Rules
) -> Repetition | Rejection:
    name = REPEAT
    try:
        repetition = parse_repetition(text_of(control[REPEAT]))
        if longest_ms(repetition) > rules.max_delay_ms:
            return _beyond(REPEAT, rules)
        times, until_ms, zone, policy = 0, 0, "", repetition.late_policy
        if (name := REPEAT_TIMES) in control:
            times = _times(text_of(control[REPEAT_TIMES]))
        if (name := REPEAT_UNTIL) in control:
            until_ms = time_of(control[REPEAT_UNTIL], record.timestamp_ms, rules.min_time_ms)
            if until_ms < due_ms:
                return Rejection(
                    Reason.CONTRADICTORY_HEADERS, f"{REPEAT_UNTIL} is before the first due time"
                )
        if (name := TIME_ZONE) in control:
            zone = text_of(control[TIME_ZONE])
            if repetition.kind != Repeat.CRON:
                return Rejection(
                    Reason.CONTRADICTORY_HEADERS, f"{TIME_ZONE} goes with a cron expression only"
                )
            if not 0 < len(zone) <= ZONE_CHARACTERS_MAX:
                raise ValueError(f"{zone[:80]!r} is not a time zone")
        if (name := LATE_POLICY) in control:
            named = LATE_POLICIES.get(control[LATE_POLICY] or b"")
            if named is None:
                raise ValueError(
                    f"{shown(control[LATE_POLICY])} is not one of {names(LATE_POLICIES)}"
                )
            policy = named
    except ValueError as error:
        return bad_value(name, error)
    return replace(repetition, times=times, until_ms=until_ms, zone=zone, late_policy=policy)


def _times(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= TIMES_MAX):
        raise ValueError(f"{text[:80]!r} is not a number from 1 to {TIMES_MAX}")
    return int(text)


def _check_first_time(
    repetition: Repetition,
    control: Mapping[str, bytes | None],
    record: Record,
    expire_at_ms: int | None,
    rules: Rules,
) -> Rejection | None:
    """Check a cron expression, as a master does, and the first time that is left to it."""
    if repetition.kind != Repeat.CRON:
        return None
    first_is_left = not has_time(control)
    if first_is_left and expire_at_ms is not None:
        return Rejection(
            Reason.CONTRADICTORY_HEADERS,
            f"{EXPIRE_AT} of a series is counted from its first due time, which is not given",
        )
    if rules.next_cron is None:
        return None
    try:
        first_ms = rules.next_cron(repetition.cron, repetition.zone, record.timestamp_ms)
    except ValueError as error:
        name = TIME_ZONE if "is not a time zone" in str(error) else REPEAT
        return Rejection(Reason.BAD_VALUE, f"{name}: {error}")
    if first_ms is None:
        return Rejection(Reason.BAD_VALUE, f"{REPEAT}: {repetition.cron!r} never fires")
    if not first_is_left:
        return None
    if repetition.until_ms and first_ms > repetition.until_ms:
        return Rejection(
            Reason.CONTRADICTORY_HEADERS, f"{REPEAT_UNTIL} is before the first due time"
        )
    return _beyond(REPEAT, rules) if first_ms > record.timestamp_ms + rules.max_delay_ms else None


def _beyond(name: str, rules: Rules) -> Rejection:
    limit = format_duration(rules.max_delay_ms)
    return Rejection(
        Reason.BEYOND_MAX_DELAY, f"{name}: longer than {limit}, the limit set by limits.max_delay"
    )


def parse(record: Record, rules: Rules) -> Command:
    """Return the command of a record. Never raises: a record that cannot be understood is a
    `Rejection`."""
    if record.headers is None:
        return Rejection(Reason.UNREADABLE_HEADERS, "a header name is not UTF-8")
    if record.create_time:
        return Rejection(
            Reason.CREATE_TIME,
            f"the record has the producer's timestamp ({record.timestamp_ms}), not the broker's: "
            "it was written while message.timestamp.type of the topic was CreateTime",
        )
    control: dict[str, bytes | None] = {}
    passed: dict[str, bytes | None] = {}
    given, names_seen = record.headers, rules.names_seen
    for name, value in given:
        if name in HEADERS:
            control[name] = value
        elif name in names_seen:
            passed[name] = value
        else:
            split = _split(given, rules)
            if isinstance(split, Rejection):
                return split
            given, control, passed = split
            record = replace(record, headers=given)
            break
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]] = passed
    if len(control) + len(passed) != len(given):
        own = [header for header in given if header[0] not in control]
        repeated = _repeated(given)
        if repeated:
            return Rejection(Reason.REPEATED_HEADER, f"{repeated[:80]} is given more than once")
        headers = passed if len(own) == len(passed) else own

    if FORWARDED in control:
        return _forwarded(record, control, headers, rules)
    if len(control) == 2:
        plain = _plain(record, control, headers, rules)
        if plain is not None:
            return plain
    return _any(record, control, headers, rules)


def _split(
    given: Headers, rules: Rules
) -> (
    tuple[list[tuple[str, bytes | None]], dict[str, bytes | None], dict[str, bytes | None]]
    | Rejection
):
    """Return headers of which a name was not seen before, those of Chronos as it spells them: all,
    Chronos's, and the producer's own."""
    headers: list[tuple[str, bytes | None]] = []
    control: dict[str, bytes | None] = {}
    passed: dict[str, bytes | None] = {}
    for name, value in given:
        header = _header(name, rules)
        if isinstance(header, Rejection):
            return header
        if header is None:
            passed[name] = value
        else:
            control[header] = value
        headers.append((header or name, value))
    return headers, control, passed


def _header(name: str, rules: Rules) -> str | Rejection | None:
    """Return the header of Chronos that a name stands for; None if it is the producer's own."""
    try:
        header = header_of(name)
    except ValueError as error:
        return Rejection(Reason.UNKNOWN_HEADER, str(error))
    if header is None:
        rules.remember_name(name)
    elif header == FORWARDED != name:
        return Rejection(Reason.BAD_VALUE, f"{FORWARDED}: Chronos did not write {name[:80]}")
    return header


def _any(
    record: Record,
    control: dict[str, bytes | None],
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]],
    rules: Rules,
) -> Command:
    """Parse a record with any control headers."""
    verb = _verb(record, control)
    if isinstance(verb, Rejection):
        return verb
    if verb is Verb.PROBE:
        return PROBE_ACTION
    if verb in (Verb.SCHEDULE, Verb.REPLACE, Verb.REPLAY, Verb.BACKFILL):
        command = _message(record, control, headers, verb, rules)
    else:
        command = _action(record, control, verb, rules)
    if type(command) is Rejection and CALL in control and verb not in _WITHOUT_CALL:
        return _rejected_call(command, record, control, rules)
    return command


def _rejected_call(
    rejection: Rejection, record: Record, control: Mapping[str, bytes | None], rules: Rules
) -> Rejection:
    """Return the rejection with its call and id, if the record has valid ones."""
    message_id = record.key if record.key is not None else control.get(ID)
    call = _call(control)
    if (
        message_id is None
        or isinstance(call, Rejection)
        or not 0 < len(message_id) <= ID_BYTES_MAX
        or parse_generated_id(message_id, rules.shards) is not None
    ):
        return rejection
    return replace(rejection, id=message_id, call=call)


def _forwarded(
    record: Record,
    control: dict[str, bytes | None],
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]],
    rules: Rules,
) -> Command:
    """Parse a forwarded record as if it had been written to this partition at its first
    timestamp."""
    found = hop_of(control.pop(FORWARDED), record.timestamp_ms, rules)
    if isinstance(found, Rejection):
        return found
    source, first_ms = found
    record = Record(record.offset, first_ms, record.key, record.value, record.headers)
    command = _plain(record, control, headers, rules) if len(control) == 2 else None
    if command is None:
        command = _any(record, control, headers, rules)
    if isinstance(command, Misplaced):
        return misplaced(command.partition, rules, was_forwarded=True)
    if isinstance(command, Action):
        return replace(command, first_ms=first_ms)
    if isinstance(command, Entry):
        return replace(command, order=IdOrder(source))
    if isinstance(command, ConditionalSchedule):
        return replace(command, entry=replace(command.entry, order=IdOrder(source)))
    return command


def _plain(
    record: Record,
    control: Mapping[str, bytes | None],
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]],
    rules: Rules,
) -> Command | None:
    """Parse a record with only a time in epoch milliseconds and a target seen before, like almost
    every record.

    The fast path saves a quarter of the parser's time; None means that the general path must be
    taken, with the same result."""
    at, target = control.get(DELIVER_AT), control.get(TARGET_TOPIC)
    if at is None or target is None or len(at) != 13 or not at.isdigit():
        return None
    topic, due_ms, key, timestamp_ms = (
        rules.topics_seen.get(target),
        int(at),
        record.key,
        record.timestamp_ms,
    )
    if topic is None or not rules.min_time_ms <= due_ms <= timestamp_ms + rules.max_delay_ms:
        return None
    if due_ms < timestamp_ms - rules.max_past_ms:
        return None
    if key is not None and (key[:1].isdigit() or len(key) > ID_BYTES_MAX or not key):
        rejection = _check_id(key, rules, own=True)
        if rejection is not None:
            return rejection
    return Entry(key, due_ms, topic, None, headers, record.value, timestamp_ms)


def _repeated(headers: Headers) -> str | None:
    """Return the first control header that is given twice; receipt headers are dropped anyway."""
    seen: set[str] = set()
    for name, _ in headers:
        if name[:8] == PREFIX and name not in RECEIPT:
            if name in seen:
                return name
            seen.add(name)
    return None


def _not_a_repetition(control: Mapping[str, bytes | None]) -> Rejection | None:
    """The rejection of a repetition that is none, in a record without a time: only its kind tells
    whether a time is needed."""
    if REPEAT not in control or has_time(control):
        return None
    try:
        parse_repetition(text_of(control[REPEAT]))
    except ValueError as error:
        return bad_value(REPEAT, error)
    return None


def _verb(record: Record, control: Mapping[str, bytes | None]) -> Verb | Rejection:
    if ACTION not in control:
        is_tombstone = record.value is None and record.key is not None
        return (
            Verb.CANCEL
            if is_tombstone and not has_time(control) and not repeats_by_cron(control)
            else Verb.SCHEDULE
        )
    raw = control[ACTION]
    verb = VERBS.get(raw or b"")
    return _not_a_verb(raw) if verb is None else verb


def _not_a_verb(raw: bytes | None) -> Rejection:
    return Rejection(Reason.BAD_VALUE, f"{ACTION}: {shown(raw)} is not one of {names(VERBS)}")


def _message(
    record: Record,
    control: dict[str, bytes | None],
    headers: dict[str, bytes | None] | list[tuple[str, bytes | None]],
    verb: Verb,
    rules: Rules,
) -> Command:
    """Parse a `schedule`, a `replace`, a `replay` or a `backfill`."""
    target = control.get(TARGET_TOPIC)
    misfit = _misfit(control, SCHEDULING)
    if misfit is not None:
        return misfit
    if target is None:
        return Rejection(Reason.NO_TARGET, f"{TARGET_TOPIC} is missing")
    topic = rules.target(target)
    if isinstance(topic, Rejection):
        return topic
    first_is_left = not has_time(control) and repeats_by_cron(control)
    due_ms = record.timestamp_ms if first_is_left else _due_ms(record, control, rules)
    if isinstance(due_ms, Rejection):
        return _not_a_repetition(control) or due_ms
    if (
        due_ms < record.timestamp_ms
        and verb not in (Verb.REPLAY, Verb.BACKFILL)
        and REPEAT not in control
    ):
        past = _past(record, due_ms, rules)
        if past is not None:
            return past
    expire_at_ms: int | None = None
    if EXPIRE_AT in control:
        try:
            expire_at_ms = time_of(control[EXPIRE_AT], record.timestamp_ms, rules.min_time_ms)
        except ValueError as error:
            return bad_value(EXPIRE_AT, error)
        if verb is Verb.REPLAY and expire_at_ms <= due_ms:
            expire_at_ms = None  # A dead letter is replayed though its message has expired.
        elif expire_at_ms < due_ms:
            return Rejection(Reason.CONTRADICTORY_HEADERS, f"{EXPIRE_AT} is before the due time")
    options: Options | None = None
    if not control.keys().isdisjoint(OPTIONAL):
        parsed = parse_options(record, control, due_ms, expire_at_ms, rules)
        if isinstance(parsed, Rejection):
            return parsed
        options = parsed
    # The first time of a cron series is decided by a master, like all others: until then it is at
    # its own timestamp.
    entry = Entry(
        record.key,
        due_ms,
        topic,
        control.get(TARGET_KEY),
        headers,
        record.value,
        record.timestamp_ms,
        expire_at_ms,
        occurrence=0 if first_is_left else 1,
        options=options,
    )
    if verb is Verb.REPLAY:
        return _replay(entry, record, control, rules)
    if record.key is None:
        return _without_id(entry, control, verb)
    return _with_id(entry, record.key, control, verb, rules)


def _without_id(entry: Entry, control: Mapping[str, bytes | None], verb: Verb) -> Command:
    if verb is Verb.REPLACE:
        return Rejection(Reason.NO_ID, "replace needs an id, the record's key")
    if ON_CONFLICT in control:
        return Rejection(
            Reason.CONTRADICTORY_HEADERS, f"{ON_CONFLICT} without an id, the record's key"
        )
    return entry


def _with_id(
    entry: Entry, key: bytes, control: Mapping[str, bytes | None], verb: Verb, rules: Rules
) -> Command:
    rejection = _check_id(key, rules, own=True)
    if rejection is not None:
        return rejection
    call = _call(control)
    if isinstance(call, Rejection):
        return call
    if ON_CONFLICT not in control:
        if verb is Verb.REPLACE:
            return ConditionalSchedule(entry, verb, OnConflict.REPLACE, call=call)
        if call is None:
            return entry
        return ConditionalSchedule(entry, Verb.SCHEDULE, OnConflict.REJECT, call=call)
    if verb is Verb.REPLACE:
        return Rejection(
            Reason.CONTRADICTORY_HEADERS, f"{ON_CONFLICT} goes with schedule, not with replace"
        )
    policy = CONFLICT_POLICIES.get(control[ON_CONFLICT] or b"")
    if policy is None:
        return Rejection(
            Reason.BAD_VALUE,
            (
                f"{ON_CONFLICT}: {shown(control[ON_CONFLICT])} is not one of "
                f"{names(CONFLICT_POLICIES)}"
            ),
        )
    if policy is OnConflict.REJECT and call is None:
        return entry
    return ConditionalSchedule(entry, Verb.SCHEDULE, policy, DELIVER_AT in control, call)


def _call(control: Mapping[str, bytes | None]) -> bytes | Rejection | None:
    """Return the token of the call; None without one."""
    if CALL not in control:
        return None
    call = control[CALL]
    if not call or len(call) > CALL_BYTES_MAX:
        return Rejection(
            Reason.BAD_VALUE, f"{CALL}: {shown(call)} is not a value of 1 to {CALL_BYTES_MAX} bytes"
        )
    return call_token(call)


def _replay(
    entry: Entry, record: Record, control: Mapping[str, bytes | None], rules: Rules
) -> Command:
    """Return a dead-lettered message under its own id, which may be a generated one, with the
    header `chronos-replayed`."""
    if ON_CONFLICT in control:
        return Rejection(
            Reason.CONTRADICTORY_HEADERS, f"{ON_CONFLICT} goes with schedule, not with replay"
        )
    if control.get(REPLAYED) is None:
        return Rejection(
            Reason.CONTRADICTORY_HEADERS,
            f"replay without {REPLAYED}, the source of the dead letter",
        )
    message_id = record.key if record.key is not None else control.get(ID)
    if message_id is None:
        return Rejection(Reason.NO_ID, f"replay needs an id: the record's key, or {ID}")
    rejection = _check_id(message_id, rules, own=record.key is not None)
    if rejection is not None:
        return rejection
    replayed = (REPLAYED, control[REPLAYED])
    own = entry.headers
    headers = own | dict([replayed]) if isinstance(own, dict) else [*own, replayed]
    return ConditionalSchedule(
        replace(entry, id=message_id, headers=headers), Verb.REPLAY, OnConflict.REJECT
    )


def _action(record: Record, control: dict[str, bytes | None], verb: Verb, rules: Rules) -> Command:
    """Parse a `reschedule`, `cancel`, `fire-now` or `settled`."""
    allowed = {ACTION, ID, CALL}
    if verb is Verb.RESCHEDULE:
        allowed |= {DELIVER_AT, DELAY}
    misfit = _misfit(control, frozenset(allowed))
    if misfit is not None:
        return misfit
    named = control.get(ID)
    if named is not None and record.key is not None and named != record.key:
        return Rejection(
            Reason.CONTRADICTORY_HEADERS, f"{ID} and the record's key name different messages"
        )
    if sum(name == ID for name, _ in record.headers or ()) > 1:
        return Rejection(Reason.REPEATED_HEADER, f"{ID} is given more than once")
    if ID in control and named is None:
        return Rejection(Reason.BAD_VALUE, f"{ID}: null is not an id")
    target_id = named if named is not None else record.key
    if target_id is None:
        return Rejection(
            Reason.NO_ID,
            f"{verb.name.lower().replace('_', '-')} needs an id: the record's key, or {ID}",
        )
    # The message of a generated id is at the position in that id: nothing else can take it.
    rejection = _check_id(target_id, rules, own=verb is Verb.SETTLED)
    if rejection is not None:
        return rejection
    call = _call(control)
    if isinstance(call, Rejection):
        return call
    if verb is not Verb.RESCHEDULE:
        return Action(verb, target_id, call=call if verb is Verb.CANCEL else None)
    due_ms = _due_ms(record, control, rules)
    if isinstance(due_ms, Rejection):
        return due_ms
    past = _past(record, due_ms, rules)
    return Action(verb, target_id, due_ms, call=call) if past is None else past


def _misfit(control: Mapping[str, bytes | None], allowed: frozenset[str]) -> Rejection | None:
    """Return the rejection of the first control header that does not belong here; receipt headers
    are let through."""
    for name in control:
        if name in allowed or name in RECEIPT:
            continue
        if name in SCHEDULING:
            return Rejection(
                Reason.CONTRADICTORY_HEADERS,
                f"{name} does not go with {shown(control.get(ACTION, b'cancel'))}",
            )
        return Rejection(Reason.UNKNOWN_HEADER, f"{name[:80]} is not a header of Chronos")
    return None


def _due_ms(record: Record, control: Mapping[str, bytes | None], rules: Rules) -> int | Rejection:
    at = control.get(DELIVER_AT)
    if at is not None and DELAY not in control:
        try:
            due_ms = time_of(at, record.timestamp_ms, rules.min_time_ms)
        except ValueError as error:
            return bad_value(DELIVER_AT, error)
    elif DELAY in control:
        if DELIVER_AT in control:
            return Rejection(
                Reason.CONTRADICTORY_HEADERS, f"{DELIVER_AT} and {DELAY} are both given"
            )
        try:
            delay = text_of(control[DELAY])
            due_ms = record.timestamp_ms + parse_duration_ms(delay)
        except ValueError as error:
            return bad_value(DELAY, error)
        if due_ms < record.timestamp_ms + BARE_MS_MIN and lacks_unit(delay):
            rules.count_unitless(control.get(TARGET_TOPIC))
    elif DELIVER_AT in control:
        return Rejection(Reason.BAD_VALUE, f"{DELIVER_AT}: null is not a time")
    else:
        return Rejection(Reason.NO_TIME, f"neither {DELIVER_AT} nor {DELAY} is given")
    if due_ms > record.timestamp_ms + rules.max_delay_ms:
        limit = format_duration(rules.max_delay_ms)
        return Rejection(
            Reason.BEYOND_MAX_DELAY,
            f"due more than {limit} ahead, the limit set by limits.max_delay",
        )
    return due_ms


def _past(record: Record, due_ms: int, rules: Rules) -> Rejection | None:
    """Return the rejection of a due time that lies so far in the past that it was not meant."""
    past_ms = record.timestamp_ms - due_ms
    if past_ms <= rules.max_past_ms:
        return None
    limit = format_duration(rules.max_past_ms)
    return Rejection(
        Reason.PAST,
        (
            f"due at {format_time(due_ms)}, more than {limit} in the past, the limit set by "
            "limits.max_past"
        ),
    )


def _check_id(message_id: bytes, rules: Rules, *, own: bool) -> Rejection | None:
    """Check an id: one that a producer must have chosen (`own`), such as the key of a new message,
    or the id that an action names."""
    if not 0 < len(message_id) <= ID_BYTES_MAX:
        return Rejection(
            Reason.BAD_ID, f"an id is 1 to {ID_BYTES_MAX} bytes long, this one {len(message_id)}"
        )
    named = parse_generated_id(message_id, rules.shards)
    if named is not None:
        if own:
            return Rejection(
                Reason.RESERVED_ID,
                "this key looks like the id Chronos gives to a message without one",
            )
        if named[0] != rules.shard:
            return misplaced(named[0], rules)
    return None
