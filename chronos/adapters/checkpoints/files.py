"""A checkpoint as files on this machine: copied from a store, described, checked, packed into one
stream and unpacked.

A copy counts only if every byte matches its manifest, and the store in it opens and has the digest
of the manifest. Where checkpoints are kept is the subject of `checkpoints.folder`."""

import hashlib
import io
import re
import shutil
import tarfile
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from chronos.adapters.disk import free_bytes, sync
from chronos.adapters.rocksdb import RocksStore
from chronos.core.keys import IDENTITY_KEY, STATE_KEY
from chronos.core.shard.codec import (
    FRESH,
    RULES,
    UNDECODABLE,
    Identity,
    check_rules,
    unpack_identity,
    unpack_state,
)
from chronos.core.shard.digest import digest
from chronos.errors import ConfigurationError, NoSpace, StoreCorrupt
from chronos.ports import Checkpoint, CheckpointFile, Store

FORMAT = 1
"""Version of the manifest and of the files it describes."""

MANIFEST = "manifest.json"

MANIFEST_BYTES_MAX = 4_000_000
"""Enough for twenty thousand files; a store of ten million messages has some hundred."""

CHUNK_BYTES = 1 << 20
"""Bytes read and written at a time."""

CACHE_BYTES = 8 << 20
"""Block cache of a copy, which is read once."""

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
NOT_CONTENT = re.compile(r"LOG(\.old.*)?|LOCK")
"""RocksDB's info log and lock."""

COPY_REMEDY = (
    "It is a copy of this node's store, so the store is damaged too: remove it, it is rebuilt "
    "from a checkpoint and the logs."
)

Opener = Callable[[Path], Store]
"""Opens a copy for reading and changes none of its files."""


def open_copy(path: Path) -> Store:
    """Open a copy on disk, read-only."""
    return RocksStore(path, block_cache=CACHE_BYTES, remedy=COPY_REMEDY, read_only=True)


def encode_manifest(checkpoint: Checkpoint) -> bytes:
    """Encode as indented JSON: operators read it during an incident."""
    return msgspec.json.format(msgspec.json.encode(checkpoint), indent=2)


def decode_manifest(data: bytes, where: str) -> Checkpoint:
    """Decode a manifest. Raises StoreCorrupt if it is damaged, of another format, or names
    impossible files."""
    try:
        form = msgspec.json.decode(data, type=_Form)
        if form.format != FORMAT:
            raise StoreCorrupt(
                f"{where} has format {form.format}, which this version of Chronos does not know: "
                "use a newer one"
            )
        check_rules(form.rules, where, StoreCorrupt)
        checkpoint = msgspec.json.decode(data, type=Checkpoint)
    except UNDECODABLE as error:
        raise StoreCorrupt(
            f"{where} cannot be decoded ({error}): this checkpoint is damaged, use another one"
        ) from error
    names = [file.name for file in checkpoint.files]
    if not all(FILE_NAME.fullmatch(name) and name != MANIFEST for name in names) or len(
        set(names)
    ) < len(names):
        raise StoreCorrupt(
            f"{where} names files that no checkpoint has: it was not made by Chronos, use another "
            "one"
        )
    return checkpoint


class _Form(msgspec.Struct):
    format: int
    rules: int = 0


class Copier:
    """Copies this node's stores, and receives copies of other nodes' stores. Any thread may
    call."""

    def __init__(
        self,
        scratch: Path,
        *,
        node: str,
        version: str,
        remembered_ms: int = 0,
        reserve_bytes: int = 0,
        open_store: Opener = open_copy,
    ) -> None:
        """`scratch`: a folder for copies under way, on the disk of the stores so that files are
        hard links; its content is deleted. `remembered_ms`: for the digest,
        `retention.id_states_kept_ms`. `reserve_bytes`: free space that a received copy leaves on
        its disk. `open_store`: opens a copy."""
        self.open_store = open_store
        self.node = node
        self._scratch = scratch
        self._version = version
        self._remembered_ms = remembered_ms
        self._reserve_bytes = reserve_bytes
        shutil.rmtree(scratch, ignore_errors=True)

    @contextmanager
    def temporary_copy(
        self, shard: int, store: Store, now_ms: int
    ) -> Iterator[tuple[Path, Checkpoint]]:
        """Copy the store and describe the copy; the copy is deleted at the end of the context.

        Raises StoreCorrupt if reading it shows that the store is damaged.
        """
        folder = self._scratch / f"{shard}-{uuid.uuid4().hex}"
        try:
            store.checkpoint(folder)
            names = sorted(
                file.name for file in folder.iterdir() if not NOT_CONTENT.fullmatch(file.name)
            )
            files = tuple(describe_file(folder / name) for name in names)
            yield folder, self._manifest(shard, folder, now_ms, files)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def digest(self, shard: int, store: Store, now_ms: int) -> Checkpoint:
        """Return the manifest of a checkpoint made now, without its files: the digest and the
        positions."""
        folder = self._scratch / f"{shard}-{uuid.uuid4().hex}"
        try:
            store.checkpoint(folder)
            return self._manifest(shard, folder, now_ms, ())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _manifest(
        self, shard: int, folder: Path, now_ms: int, files: tuple[CheckpointFile, ...]
    ) -> Checkpoint:
        copy = self.open_store(folder)
        try:
            data, named = copy.get([STATE_KEY, IDENTITY_KEY])
            state = FRESH if data is None else unpack_state(data)
            assert named is not None, "a store has its identity before it has anything else"
            return Checkpoint(
                format=FORMAT,
                rules=RULES,
                shard=shard,
                node=self.node,
                version=self._version,
                made_at_ms=now_ms,
                identity=unpack_identity(named),
                applied=state.applied,
                pull_offset=state.pull_offset,
                cursor_due_ms=state.cursor_due_ms,
                cursor_offset=state.cursor_offset,
                progress_ms=state.progress_ms,
                pending=state.pending,
                digest=digest(copy, remembered_ms=self._remembered_ms),
                remembered_ms=self._remembered_ms,
                files=files,
            )
        finally:
            copy.close()

    def check(self, folder: Path, checkpoint: Checkpoint, where: str) -> None:
        """Open a copy that was fetched. Raises StoreCorrupt unless the store in it matches the
        manifest."""
        copy = self.open_store(folder)
        try:
            data, named = copy.get([STATE_KEY, IDENTITY_KEY])
            state = FRESH if data is None else unpack_state(data)
            for name, expected, found in (
                ("identity", checkpoint.identity, named and unpack_identity(named)),
                ("applied", checkpoint.applied, state.applied),
                ("pull_offset", checkpoint.pull_offset, state.pull_offset),
                ("digest", checkpoint.digest, digest(copy, remembered_ms=checkpoint.remembered_ms)),
            ):
                if expected != found:
                    raise StoreCorrupt(
                        f"{where} does not match its manifest: {name} is {found}, not {expected}. "
                        "Use another one"
                    )
        finally:
            copy.close()

    def check_room(self, folder: Path, checkpoint: Checkpoint) -> None:
        """Raise NoSpace if the files of a checkpoint, written to the folder, would leave less free
        space than the reserve."""
        with _writing(folder):
            free = free_bytes(folder)
        if free - checkpoint.size_bytes < self._reserve_bytes:
            raise NoSpace(
                f"the disk of {folder} has {free >> 20} MiB left, and a checkpoint of "
                f"{checkpoint.size_bytes >> 20} MiB would leave less than "
                f"{self._reserve_bytes >> 20} MiB (limits.disk_reserve): make room, one "
                "is fetched again after a minute"
            )

    @contextmanager
    def receiving(self, into: Path) -> Iterator[Path]:
        """Yield a folder to fetch into; it is renamed to `into` if all went well, and deleted
        otherwise. Raises NoSpace if it cannot be made, synced or renamed."""
        part = _part(into)
        with _writing(part):
            if into.exists():
                raise ConfigurationError(
                    [f"{into} is there already: a checkpoint never overwrites a store"]
                )
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        try:
            yield part
            with _writing(part):
                for file in part.iterdir():
                    sync(file)
                sync(part)
                part.rename(into)
                sync(into.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    # --- one stream, from one node to another

    def stream(self, shard: int, store: Store, now_ms: int) -> Generator[bytes, None, None]:
        """Stream a checkpoint of the store as a tar: the manifest, then its files. Close the
        generator if it is not read to the end."""
        with self.temporary_copy(shard, store, now_ms) as (folder, checkpoint):
            yield from pack(folder, checkpoint)

    def receive(
        self, chunks: Iterable[bytes], into: Path, identity: Identity | None = None
    ) -> Checkpoint:
        """Unpack a stream into a new folder: all of it, checked, or nothing.

        Raises StoreCorrupt if it is damaged, ends early, or is of a store with another identity;
        NoSpace.
        """
        where = "the checkpoint of another node"
        with self.receiving(into) as part:
            checkpoint = unpack(chunks, part, self.check_room)
            if identity is not None and checkpoint.identity != identity:
                raise StoreCorrupt(
                    f"{where} is of {checkpoint.identity}, not of {identity}: it serves other "
                    "topics"
                )
            self.check(part, checkpoint, where)
        return checkpoint


def discard(into: Path) -> None:
    """Remove a checkpoint that was received into the folder, and what a kill left of one that was
    not received to its end."""
    for folder in (into, _part(into)):
        shutil.rmtree(folder, ignore_errors=True)


def _part(into: Path) -> Path:
    return into.with_name(f"{into.name}.part")


def pack(folder: Path, checkpoint: Checkpoint) -> Iterator[bytes]:
    """Yield a tar of the manifest and the files it names."""
    manifest = encode_manifest(checkpoint)
    yield _head(MANIFEST, len(manifest)) + _padded(manifest)
    for file in checkpoint.files:
        yield _head(file.name, file.bytes)
        with (folder / file.name).open("rb") as source:
            yield from chunks_of(source)
        yield _padding(file.bytes)
    yield bytes(2 * tarfile.BLOCKSIZE)


def unpack(
    chunks: Iterable[bytes], folder: Path, check_room: Callable[[Path, Checkpoint], None]
) -> Checkpoint:
    """Write the files of a stream, each checked against the manifest, which comes first.
    `check_room` is called before the first file."""
    where = "the stream of a checkpoint"
    try:
        with tarfile.open(fileobj=_Source(chunks), mode="r|", bufsize=CHUNK_BYTES) as tar:
            first = tar.next()
            if first is None or first.name != MANIFEST or not 0 < first.size <= MANIFEST_BYTES_MAX:
                raise StoreCorrupt(
                    f"{where} does not begin with a manifest: it was not sent by Chronos, or is "
                    "damaged"
                )
            checkpoint = decode_manifest(_content(tar, first).read(), where)
            check_room(folder, checkpoint)
            missing = {file.name: file for file in checkpoint.files}
            while (member := tar.next()) is not None:
                file = missing.pop(member.name, None)
                if file is None or not member.isreg() or member.size != file.bytes:
                    raise StoreCorrupt(
                        f"{where} holds {member.name}, which its manifest does not name: fetch it "
                        "again"
                    )
                write_file(chunks_of(_content(tar, member)), folder / file.name, file, where)
    except (tarfile.TarError, EOFError) as error:
        raise StoreCorrupt(
            f"{where} is damaged or ended early ({error}): fetch it again"
        ) from error
    if missing:
        raise StoreCorrupt(
            f"{where} ended early, without {', '.join(sorted(missing))}: fetch it again"
        )
    return checkpoint


class _Source(io.RawIOBase):
    """Chunks as a readable file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        parts, length = [], 0
        while length < size:
            if not self._left:
                self._left = next(self._chunks, b"")
                if not self._left:
                    break
            part, self._left = self._left[: size - length], self._left[size - length :]
            parts.append(part)
            length += len(part)
        return b"".join(parts)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> io.BufferedIOBase:
    found = tar.extractfile(member)
    if found is None:
        raise StoreCorrupt(
            f"the stream of a checkpoint holds {member.name}, which is not a file: fetch it again"
        )
    return found  # type: ignore[return-value]


def _head(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


def _padded(data: bytes) -> bytes:
    return data + _padding(len(data))


# --- single files


def chunks_of(source: Any) -> Iterator[bytes]:
    """Yield the rest of an open file in chunks."""
    while chunk := source.read(CHUNK_BYTES):
        yield chunk


def describe_file(path: Path) -> CheckpointFile:
    """Return the name, size and digest of a file."""
    hashed, size = hashlib.blake2b(digest_size=32), 0
    with path.open("rb") as file:
        for chunk in chunks_of(file):
            hashed.update(chunk)
            size += len(chunk)
    return CheckpointFile(name=path.name, bytes=size, blake2b=hashed.hexdigest())


def check_bytes(chunks: Iterable[bytes], file: CheckpointFile, where: str) -> Iterator[bytes]:
    """Pass the chunks on; raise StoreCorrupt at their end if they do not match the description."""
    hashed, size = hashlib.blake2b(digest_size=32), 0
    for chunk in chunks:
        hashed.update(chunk)
        size += len(chunk)
        yield chunk
    if (size, hashed.hexdigest()) != (file.bytes, file.blake2b):
        raise StoreCorrupt(
            f"{file.name} of {where} is damaged: {size} bytes where {file.bytes} were written, or "
            "other ones. Use another checkpoint"
        )


def write_file(chunks: Iterable[bytes], path: Path, file: CheckpointFile, where: str) -> None:
    """Write a file that must match its description. Raises NoSpace, StoreCorrupt."""
    with _writing(path):
        target = path.open("xb")
    try:
        # An error raised by the chunks is not an error of this disk.
        for chunk in check_bytes(chunks, file, where):
            with _writing(path):
                target.write(chunk)
    finally:
        # The last bytes, or all of a small file, are written here.
        with _writing(path):
            target.close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NoSpace(
            f"{path} cannot be written ({error}). Make room on that disk; nothing is lost."
        ) from error


def all_damaged(names: Sequence[str]) -> StoreCorrupt:
    """The error for a shard whose checkpoints are all damaged."""
    return StoreCorrupt(
        f"no checkpoint of this shard can be used, all are damaged: {', '.join(names)}. Fetch one "
        "from another node; or, if the logs were never trimmed, move them away: the store is "
        "rebuilt from the logs"
    )
