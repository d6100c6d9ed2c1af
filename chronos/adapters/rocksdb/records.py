"""The check of a log file of RocksDB, WAL or MANIFEST, before RocksDB reads it.

Both consist of blocks of 32 KiB; a record in them is crc u32, length u16, type u8 (little-endian), payload. RocksDB
checks the crc itself, but misses two kinds of single flipped bits (measured): a type it does not expect makes it loop for
ever, and a length that points beyond the end of the file makes the rest of the file look like a write torn by a power
cut, which it drops without an error. This check finds both.
"""

from pathlib import Path

from chronos.errors import StoreCorrupt

BLOCK_BYTES = 32 * 1024
HEADER_BYTES = 7
TYPES = range(1, 5)
"""Full, first, middle, last. The other types belong to features that Chronos does not use."""


def check_records(file: Path, remedy: str) -> None:
    """Raise StoreCorrupt if the file holds a record that RocksDB would misread."""
    with file.open("rb") as log:
        block_at = 0
        while block := log.read(BLOCK_BYTES):
            at = _first_bad(block)
            if at is not None:
                raise StoreCorrupt(f"{file} is damaged at byte {block_at + at}. {remedy}")
            block_at += len(block)


def _first_bad(block: bytes) -> int | None:
    at = 0
    while at + HEADER_BYTES <= len(block):
        kind, end = _header(block, at)
        if kind == 0 and not any(block[at:]):
            return None  # space reserved and not used
        if kind not in TYPES:
            return at
        if end > len(block):
            # Nothing is ever written after a torn record.
            return at if _holds_a_record(block, at + 1) else None
        at = end
    return None


def _header(block: bytes, at: int) -> tuple[int, int]:
    """Type of a record, and its end."""
    length = block[at + 4] | block[at + 5] << 8
    return block[at + 6], at + HEADER_BYTES + length


def _holds_a_record(block: bytes, start: int) -> bool:
    for at in range(start, len(block) - HEADER_BYTES + 1):
        kind, end = _header(block, at)
        if kind in TYPES and end <= len(block):
            stored = int.from_bytes(block[at : at + 4], "little")
            if stored == _masked(_crc32c(block[at + 6 : end])):
                return True
    return False


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_table_entry(byte) for byte in range(256)]
