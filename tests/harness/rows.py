"""The rows of a store, however many scans it takes to read them."""

from chronos.core.shard.step import KeyValue, StoreView

NO_LIMIT = 10**9


def rows_of(
    view: StoreView,
    start: bytes = b"",
    stop: bytes = b"\xff" * 9,
    count_max: int = NO_LIMIT,
    bytes_max: int = NO_LIMIT,
) -> list[KeyValue]:
    """The first rows with `start <= key < stop`, within both limits, at least one if there is
    one."""
    found: list[KeyValue] = []
    position: bytes | None = start
    while position is not None and len(found) < count_max and (bytes_max > 0 or not found):
        rows, position = view.scan(position, stop, count_max - len(found), bytes_max)
        if found and sum(map(len, rows[0] if rows else ())) > bytes_max:
            break
        found += rows
        bytes_max -= sum(len(key) + len(value) for key, value in rows)
    return found
