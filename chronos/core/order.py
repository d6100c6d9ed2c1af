"""The order of the records of one id that came through different partitions, and for how long it is remembered.

Records that came through one partition keep the order of that partition, which is the order in which they arrive. The clocks of two
brokers differ by up to 1 s, each by 0.5 s from the machines (law 2), so the order of two partitions is known to about that:

    a message and a cancel      at most 0.5 s apart by their first timestamps, the cancel wins; else the later one
    two messages                at most 0.5 s apart, the one that arrives last; else the later one
    another action              acts on the message that is there, unless it is more than 0.5 s older

Two cancels of an id are enough to decide about a message from any partition: the latest, and the latest one from any other partition
than that. Rules 1 noted one only, and compared first timestamps exactly; what they noted is kept and read.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from chronos.core.clock import CLOCK_TOLERANCE_MS
from chronos.core.codec import IdState
from chronos.core.message import Entry, IdOrder, Reason, Rejection

Cancel = tuple[int, int]
"""First timestamp (epoch ms) and partition of a cancel."""


def is_forgotten(id_state: IdState, horizon_ms: int) -> bool:
    """Return whether an id was settled, and its cancels noted, before the horizon: it counts as absent, on disk or not.

    A pending one has no such time, and one that is settled in the present step has none yet.
    """
    return 0 < id_state.settled_ms < horizon_ms and kept_from_ms(id_state) < horizon_ms


def kept_from_ms(id_state: IdState) -> int:
    """Return the time (epoch ms) from which a settled id state is kept for the horizon: that of its end, or of a later cancel."""
    last_ms = max([first_ms for first_ms, _ in cancels_of(id_state)], default=0)
    return last_ms if last_ms > id_state.settled_ms + CLOCK_TOLERANCE_MS else id_state.settled_ms


def cancels_of(id_state: IdState) -> Sequence[Cancel]:
    """Return the remembered cancels of an id, of rules 1 too."""
    noted = () if id_state.cancel_shard is None else ((id_state.first_ms, id_state.cancel_shard),)
    return noted if id_state.order is None else (*noted, *id_state.order.cancels)


def with_cancel(id_state: IdState, first_ms: int, partition: int) -> IdState:
    """Return the state that remembers this cancel too, as far as it is one of the two that matter."""
    latest: dict[int, int] = {}
    for each_ms, each in (*cancels_of(id_state), (first_ms, partition)):
        latest[each] = max(each_ms, latest.get(each, 0))
    two = sorted(((each_ms, each) for each, each_ms in latest.items()), key=lambda cancel: (-cancel[0], cancel[1]))[:2]
    source = None if id_state.order is None else id_state.order.source
    # The first timestamp of rules 1 may be that of the cancel; which message it had is not known then.
    message_ms = 0 if id_state.cancel_shard is not None else id_state.first_ms
    return replace(id_state, first_ms=message_ms, cancel_shard=None, order=IdOrder(source, tuple(two)))


def succeeding(entry: Entry, id_state: IdState | None) -> Entry:
    """Return the entry of a message with the cancels of its id that came before it."""
    cancels = () if id_state is None else cancels_of(id_state)
    if not cancels:
        return entry
    return replace(entry, order=IdOrder(None if entry.order is None else entry.order.source, tuple(cancels)))


def _partition(id_state: IdState, own: int) -> int:
    """Return the partition that the message of the id came to first."""
    order = id_state.order
    return own if order is None or order.source is None else order.source


def overtaken(id_state: IdState, first_ms: int, partition: int, own: int) -> Rejection | None:
    """Return the rejection of a message that arrives after a later record of its id.

    `partition`: the one that the message came to first; `own`: that of the id.
    """
    if any(each_ms >= first_ms - CLOCK_TOLERANCE_MS and each != partition for each_ms, each in cancels_of(id_state)):
        return Rejection(
            Reason.TOO_LATE,
            f"a cancel of this id came to another partition after this message was written, or less than {CLOCK_TOLERANCE_MS} ms"
            " before: use replace to cancel and schedule at once",
        )
    has_message = id_state.cancel_shard is None and id_state.first_ms > first_ms + CLOCK_TOLERANCE_MS
    if has_message and _partition(id_state, own) != partition:
        return Rejection(Reason.TOO_LATE, "a later record of this id came first")
    return None


def precedes(first_ms: int, partition: int, id_state: IdState, own: int) -> bool:
    """Return whether an action that arrives after the pending message of its id was written before it."""
    return first_ms < id_state.first_ms - CLOCK_TOLERANCE_MS and _partition(id_state, own) != partition


# Rules 1: used on replay for ever, and by a master until all nodes know rules 2.


def with_cancel_1(id_state: IdState, first_ms: int, partition: int, own: int) -> IdState:
    """Return the state with the first timestamp of a cancel, and the partition it came to first, unless the cancel is older."""
    if first_ms < id_state.first_ms:
        return id_state
    if first_ms == id_state.first_ms and id_state.cancel_shard is not None:
        if id_state.cancel_shard in (partition, own):
            return id_state
        partition = own
    return replace(id_state, first_ms=first_ms, cancel_shard=partition)


def is_overtaken_1(id_state: IdState, first_ms: int, timestamp_ms: int, partition: int, own: int) -> bool:
    """Return whether a record of the id that counts as later came before this forwarded message, whose own time is `timestamp_ms`."""
    if first_ms == id_state.first_ms and id_state.cancel_shard is not None:
        # A cancel of the same millisecond wins. If both came to one partition first, they are in the order of that one.
        return partition not in (own, id_state.cancel_shard)
    return first_ms < min(timestamp_ms, id_state.first_ms)
