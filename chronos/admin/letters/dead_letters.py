"""Dead letters over HTTP: list, show, count, replay and discard.

Each request reads a bounded part of the dead-letter topic; every answer but the one that shows a
single letter says where the next request continues. A replay is written to the delay topic before
the marker that resolves its letters is written to the dead-letter topic. If the request fails
between the two writes, it may be repeated: the shard refuses another replay of a letter while the
first is pending, and for `retention.deduplication` after its delivery."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import msgspec
import structlog
from msgspec import UNSET

from chronos.admin.http.context import Call, Context
from chronos.admin.http.encoding import (
    headers_out,
    id_text,
    text_or_base64,
)
from chronos.admin.http.problems import converted, decode_body, invalid, wrong_field
from chronos.admin.http.schemas import (
    PATTERN_TEXTS,
    POSITION_PATTERN,
    DeadLetter,
    DeadLetterCount,
    DeadLetterCountQuery,
    DeadLetterCounts,
    DeadLetterInfo,
    DeadLetterPage,
    DeadLetterQuery,
    DeadLetterRefusal,
    DeadLetterResult,
    DeadLetterSelection,
    Destination,
    Fault,
)
from chronos.admin.letters.requests import (
    Answer,
    LetterRequests,
    id_in,
    letter_info,
    records_read,
    repeatable,
    wanted_of,
)
from chronos.admin.letters.scan import FoundLetter, ScanPart, Wanted
from chronos.admin.messages.messages import id_of
from chronos.admin.messages.targets import TopicInfos, delivered_bytes, objection
from chronos.core.keys import OFFSET_MAX
from chronos.core.letters import (
    Letter,
    control_headers,
    marker_headers,
    own_headers,
    replay,
)
from chronos.core.message import TARGET_KEY, Reason, Rejection
from chronos.core.size import memory_bytes
from chronos.core.timefmt import format_time
from chronos.errors import LogUnavailable
from chronos.ports import Outgoing

log = structlog.get_logger("chronos.http")

MARKER_RANGES = 500
"""Ranges of offsets in one marker: at most about 20 kB."""

FILTERS = ("target", "reason", "since", "until")

_decode_selection = msgspec.json.Decoder(DeadLetterSelection).decode


class RefusedLetter(NamedTuple):
    """A letter that is not replayed, and why."""

    letter: Letter
    rejection: Rejection
    is_final: bool
    """True if the shard would refuse its record; False if it would accept it and the delivery would
    fail again."""


class DeadLetters:
    """The handlers under `/v1/dead-letters`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def _requests(self) -> LetterRequests:
        return LetterRequests(self._context, self._context.dead_letters)

    @repeatable
    async def page(self, call: Call) -> Answer:
        """Dead letters of all partitions, the newest first."""
        query: DeadLetterQuery = call.query
        wanted = wanted_of(
            query, call.sender, id=id_in(query, call.sender), resolved=query.resolved
        )
        part = await self._requests.part(call, query, wanted, newest_first=True, limit=query.limit)
        letters = [_info(DeadLetterInfo, found.letter, found.resolution) for found in part.found]
        after = self._requests.after(call, query, part)
        return 200, DeadLetterPage(letters=letters, after=after, records=records_read(call, part))

    @repeatable
    async def get(self, call: Call) -> Answer:
        """The newest dead letter of a message."""
        message_id = id_of(call)
        letter, resolution = await self._requests.newest(
            call,
            Wanted(id=message_id, resolved=True, reach=call.sender.reach),
            kind="no-dead-letter",
            noun=f"dead letter of {id_text(message_id)}",
            older="older ones: GET /v1/dead-letters with `id` and `until`",
        )
        return 200, _whole(letter, resolution)

    @repeatable
    async def at(self, call: Call) -> Answer:
        """The dead letter at a position."""
        position = converted("position", position_of, call.request.match_info["position"])
        letter, resolution = await self._requests.at(call, position)
        return 200, _whole(letter, resolution)

    @repeatable
    async def counts(self, call: Call) -> Answer:
        """The number of dead letters that are not resolved by reason and target, in one part."""
        query: DeadLetterCountQuery = call.query
        part = await self._requests.part(
            call, query, wanted_of(query, call.sender), newest_first=False, limit=query.limit
        )
        after = self._requests.after(call, query, part)
        return 200, DeadLetterCounts(
            counts=_counts(part), after=after, records=records_read(call, part)
        )

    @repeatable
    async def replay(self, call: Call) -> Answer:
        """Schedule dead letters again, due at once, and mark them as replayed; not those whose
        cause is still there."""
        return await self._resolve(call, "replayed", self._replayed, self._causes)

    @repeatable
    async def discard(self, call: Call) -> Answer:
        """Mark dead letters as discarded."""
        return await self._resolve(call, "discarded", lambda _: ([], []))

    # --- resolve

    async def _resolve(
        self,
        call: Call,
        resolution: str,
        records_of: Callable[[Sequence[Letter]], tuple[list[Outgoing], list[RefusedLetter]]],
        causes_of: Callable[[Sequence[Letter], bool], Awaitable[list[RefusedLetter]]] | None = None,
    ) -> Answer:
        """1. read a part, 2. leave out those whose cause is still there, 3. write the replays, 4.
        write the markers of those that were not refused."""
        selection = decode_body(_decode_selection, DeadLetterSelection, call.body)
        _check(selection)
        context = self._context
        is_one = selection.id is not UNSET
        part = await self._requests.part(
            call,
            selection,
            wanted_of(
                selection,
                call.sender,
                id=id_in(selection, call.sender),
                positions=_positions_in(selection),
            ),
            newest_first=is_one,
            limit=1 if is_one else selection.limit,
            whole=not (is_one or selection.dry_run),
        )
        after = None if is_one and part.found else self._requests.after(call, selection, part)
        letters = [found.letter for found in part.found]
        refused: list[RefusedLetter] = []
        if causes_of is not None:
            refused = await causes_of(letters, selection.anyway)
        resolved = 0
        if letters and not selection.dry_run:
            left_out = {_place(each.letter) for each in refused}
            records, more = await context.in_thread(
                records_of, [letter for letter in letters if _place(letter) not in left_out]
            )
            refused += more
            if records:
                size_bytes = sum(memory_bytes(*record[1:3], None) for record in records)
                call.share.grow(size_bytes)
                await context.appender.append(records, size_bytes)
            left = {_place(each.letter) for each in refused}
            markers = _markers(context.dead_letters.topic, part.found, left, resolution)
            if markers:
                await context.appender.append(markers, 20_000 * len(markers))
            resolved = len(part.found) - len(refused)
            log.info(
                "dead letters resolved",
                resolution=resolution,
                letters=resolved,
                refused=len(refused),
            )
        return 200, DeadLetterResult(
            matched=len(part.found),
            resolved=resolved,
            counts=_counts(part),
            refused=_refusals(refused),
            after=after,
            records=records_read(call, part),
        )

    def _replayed(self, letters: Sequence[Letter]) -> tuple[list[Outgoing], list[RefusedLetter]]:
        """The records that schedule the letters again, and the letters that cannot be, with the
        reasons."""
        context = self._context
        records: list[Outgoing] = []
        refused = []
        now_ms, bytes_max = context.now_ms(), context.node.config.topics.message_bytes_max
        for letter in letters:
            if letter.record is None:
                letter = self._read(letter)
            found = replay(letter, context.rules, context.delay_topic, bytes_max, now_ms)
            if isinstance(found, Rejection):
                refused.append(RefusedLetter(letter, found, is_final=True))
                continue
            shard, key, headers = found
            assert letter.record is not None
            records.append((context.delay_topic, key, letter.record.value, headers, shard))
        return records, refused

    async def _causes(self, letters: Sequence[Letter], anyway: bool) -> list[RefusedLetter]:
        """The letters whose cause is still there, as far as that is known, with the reasons.

        `anyway`: only those that the shard would refuse."""
        context = self._context
        rules = context.rules[0]
        refused = [
            RefusedLetter(letter, _forbidden(letter), is_final=True)
            for letter in letters
            if letter.target and not rules.allows(letter.target)
        ]
        if anyway:
            return refused
        known = {_place(each.letter) for each in refused}
        letters = [letter for letter in letters if _place(letter) not in known]
        described = await context.targets.look(
            {letter.target for letter in letters if letter.target}
        )
        for letter in letters:
            cause = _cause(letter, described, context)
            if cause is not None:
                refused.append(RefusedLetter(letter, cause, is_final=False))
        return refused

    def _read(self, letter: Letter) -> Letter:
        """Return the letter with its record. Raises LogUnavailable if it was deleted."""
        whole = self._context.dead_letters.letter(letter.partition, letter.offset)
        if whole is None:
            raise LogUnavailable(f"the dead letter of {id_text(letter.id)} was deleted just now")
        return whole


def _forbidden(letter: Letter) -> Rejection:
    return Rejection(
        Reason.FORBIDDEN_TARGET, f"{letter.target} is not allowed by targets.allow and targets.deny"
    )


def _cause(letter: Letter, described: TopicInfos, context: Context) -> Rejection | None:
    """Why the letter would fail again now; of a letter in a list, its reason and the size of its
    payload are known."""
    record, payload_bytes = letter.record, letter.value_bytes or 0
    key = None if record is None else control_headers(letter).get(TARGET_KEY)

    def size() -> int:
        return (
            payload_bytes
            if record is None
            else delivered_bytes(letter.id, key, record.value, own_headers(letter))
        )

    found = objection(
        letter.target,
        described,
        bytes_about=2**31
        if record is None
        else memory_bytes(record.key, record.value, record.headers),
        has_key=lambda: letter.reason != Reason.NO_KEY.label if record is None else key is not None,
        size=size,
        creates=context.creates_targets,
    )
    return None if found is None else Rejection(found[0], f"the cause is still there: {found[1]}")


def _counts(part: ScanPart) -> list[DeadLetterCount]:
    counts = Counter((found.letter.reason, found.letter.target) for found in part.found)
    return [
        DeadLetterCount(reason=reason, topic=target, letters=count)
        for (reason, target), count in counts.most_common()
    ]


def _place(letter: Letter) -> tuple[int, int]:
    return letter.partition, letter.offset


def _markers(
    topic: str, part: Sequence[FoundLetter], left: set[tuple[int, int]], resolution: str
) -> list[Outgoing]:
    """The markers for the letters of a part, without those in `left`; letters that follow each
    other are one range."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    in_order = sorted(part, key=lambda found: (found.letter.partition, found.letter.offset))
    for (partition, _, is_left), run in groupby(in_order, key=_run_without(left)):
        if not is_left:
            offsets = [found.letter.offset for found in run]
            ranges.setdefault(partition, []).append((offsets[0], offsets[-1]))
    markers: list[Outgoing] = []
    for partition, of_partition in ranges.items():
        rest = iter(of_partition)
        while some := list(islice(rest, MARKER_RANGES)):
            markers.append((topic, None, None, marker_headers(resolution, some), partition))
    return markers


def _run_without(left: set[tuple[int, int]]) -> Callable[[FoundLetter], tuple[int, int, bool]]:
    def key(found: FoundLetter) -> tuple[int, int, bool]:
        return (
            found.letter.partition,
            found.run,
            (found.letter.partition, found.letter.offset) in left,
        )

    return key


def _refusals(refused: Sequence[RefusedLetter]) -> list[DeadLetterRefusal]:
    found: dict[tuple[str, bool], DeadLetterRefusal] = {}
    for letter, rejection, is_final in refused:
        kind = rejection.reason.label, is_final
        if kind in found:
            found[kind].letters += 1
        else:
            found[kind] = DeadLetterRefusal(
                final=is_final,
                reason=rejection.reason.label,
                letters=1,
                id=id_text(letter.id),
                detail=rejection.detail,
            )
    return list(found.values())


# --- requests


def _check(selection: DeadLetterSelection) -> None:
    """ProblemError with status 422 unless exactly one way of selection is used."""
    filters = [name for name in FILTERS if getattr(selection, name) is not UNSET]
    given = [name for name in ("id", "positions", "all") if getattr(selection, name) is not UNSET]
    if selection.all is False:
        raise wrong_field("all", "only true is valid")
    if len(given) + bool(filters) != 1:
        detail = (
            "give `id`, or `positions`, or `all`, or at least one of `target`, `reason`, `since` "
            "and `until`"
        )
        raise invalid(detail, [Fault(field=(given or filters or ["id"])[0], detail=detail)])


def position_of(text: str) -> tuple[int, int]:
    """Partition and offset of a position; ValueError with a text for users."""
    if re.fullmatch(POSITION_PATTERN, text, re.ASCII) is None:
        raise ValueError(PATTERN_TEXTS[POSITION_PATTERN])
    partition, offset = text.split(":")
    return int(partition), min(int(offset), OFFSET_MAX)


def _positions_in(selection: DeadLetterSelection) -> frozenset[tuple[int, int]] | None:
    if selection.positions is UNSET:
        return None
    return frozenset(position_of(text) for text in selection.positions)


# --- answers


def _info(kind: type[Any], letter: Letter, resolution: str | None, **more: Any) -> Any:
    return letter_info(
        kind,
        letter,
        dead_at=format_time(letter.timestamp_ms),
        due_at=None if letter.due_ms is None else format_time(letter.due_ms),
        attempt=letter.attempt,
        occurrence=letter.occurrence,
        replayed=UNSET if letter.replayed is None else letter.replayed,
        resolution=UNSET if resolution is None else resolution,
        **more,
    )


def _whole(letter: Letter, resolution: str | None) -> Any:
    assert letter.record is not None
    key, key_base64 = text_or_base64(control_headers(letter).get(TARGET_KEY))
    value, value_base64 = text_or_base64(letter.record.value)
    own = own_headers(letter)
    target = Destination(
        topic=letter.target,
        key=UNSET if key is None else key,
        key_base64=key_base64,
        headers=headers_out(own) if own else UNSET,
    )
    return _info(
        DeadLetter,
        letter,
        resolution,
        target=target,
        value_base64=value_base64,
        value=UNSET if value_base64 is not UNSET else value,
    )
