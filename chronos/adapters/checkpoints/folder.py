"""Checkpoints in a folder or in object storage, through fsspec (`ports.Checkpoints`); and beside
them the archive's positions.

A checkpoint counts once its manifest is there, which is written last, after every byte was read
back. No file of a checkpoint is ever changed in place. Checkpoints of other topics of the same
names (a topic deleted and created again) are neither used nor pruned.

The methods block their thread: that of checkpoints, or that of a shard, which has nothing else to
do until it has a store."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import structlog
from fsspec.implementations.local import LocalFileSystem

from chronos.adapters.checkpoints.files import (
    MANIFEST,
    Copier,
    all_damaged,
    check_bytes,
    chunks_of,
    decode_manifest,
    encode_manifest,
    write_file,
)
from chronos.adapters.disk import keep_private
from chronos.core.shard.codec import Identity
from chronos.errors import ChronosError, ConfigurationError, Retry, StoreCorrupt
from chronos.ports import Checkpoint, CheckpointFile, Store

log = structlog.get_logger("chronos.checkpoints")

NAME = re.compile(r"(\d{20})-(.+)")

ARCHIVED = "archived.json"
"""File beside the checkpoints of a shard with the archive's positions in its two partitions."""


class CheckpointFolder:
    """See `ports.Checkpoints`. Any thread may call, one at a time for one shard."""

    def __init__(self, location: str, cluster: str, copier: Copier, *, data_dir: Path) -> None:
        """`location`: a folder, or a URL that fsspec knows. Raises ConfigurationError, also for a
        folder inside `data_dir`."""
        # A URL may hold a password, and error texts end up in logs.
        self._shown = re.sub(r"//[^/@]*@", "//********@", location)
        self._copier = copier
        try:
            self._files, root = fsspec.core.url_to_fs(location)
        except (ImportError, ValueError) as error:
            raise ConfigurationError(
                [f"checkpoints.location {self._shown} cannot be used: {error}"]
            ) from error
        self._is_local = isinstance(self._files, LocalFileSystem)
        if self._is_local:
            root, within = os.path.realpath(root), os.path.realpath(data_dir)
            if os.path.commonpath([root, within]) == within:
                raise ConfigurationError(
                    [
                        f"checkpoints.location {self._shown} lies inside node.data_dir and would "
                        "be lost with it"
                    ]
                )
        self._location = Path(root)
        self._root = f"{root.rstrip('/')}/{cluster}"
        # A folder that is missing is made later, and one that cannot be read is an error then.
        with suppress(OSError):
            if self._is_local and not keep_private(Path(self._root)):
                log.warning(
                    "others may read checkpoints.location, which is another user's",
                    path=self._root,
                    remedy="chown or chmod it",
                )

    # --- making

    def save(self, shard: int, store: Store, now_ms: int) -> Checkpoint:
        """1. copy and describe, 2. write the files, 3. read them back, 4. write the manifest.

        If this node made a checkpoint of the same state before, that one is returned instead.
        """
        with self._copier.temporary_copy(shard, store, now_ms) as (folder, checkpoint):
            place = self._place(shard, checkpoint.name)
            with self._reaching("writing"):
                # One whose upload was cut short is made again.
                with suppress(StoreCorrupt):
                    known = self._read_manifest(place)
                    if known is not None and _same(known, checkpoint) and self.is_intact(known):
                        return known
                self._remove(place)
                self._make_folder(place)
                for file in checkpoint.files:
                    with (folder / file.name).open("rb") as source:
                        self._write(f"{place}/{file.name}", chunks_of(source))
                try:
                    self._check_files(checkpoint)
                except StoreCorrupt as error:
                    raise Retry(
                        f"checkpoints.location {self._shown} does not give back what was written "
                        f"({error}): look at that storage. The logs are not trimmed meanwhile"
                    ) from error
                self._write(f"{place}/{MANIFEST}", iter([encode_manifest(checkpoint)]))
        return checkpoint

    def _make_folder(self, place: str) -> None:
        """Make a folder, and on a local disk all from the location on for this user only: they hold
        every payload."""
        if not self._is_local:
            self._files.makedirs(place, exist_ok=True)
            return
        self._location.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._location
        for name in Path(place).relative_to(self._location).parts:
            path /= name
            path.mkdir(mode=0o700, exist_ok=True)

    def _write(self, path: str, chunks: Iterator[bytes]) -> None:
        with (
            open(path, "wb", opener=_for_this_user)
            if self._is_local
            else self._files.open(path, "wb") as file
        ):
            for chunk in chunks:
                file.write(chunk)
            if self._is_local:
                file.flush()
                os.fsync(file.fileno())

    # --- listing and checking

    def kept(self, shard: int, identity: Identity) -> list[Checkpoint]:
        found = []
        with self._reaching("reading"):
            for name in self._names(shard):
                try:
                    checkpoint = self._read_manifest(self._place(shard, name))
                except StoreCorrupt as error:
                    log.warning("checkpoint ignored", name=name, why=str(error))
                    continue
                if (
                    checkpoint is not None
                    and checkpoint.identity == identity
                    and checkpoint.name == name
                ):
                    found.append(checkpoint)
        return found

    def is_intact(self, checkpoint: Checkpoint) -> bool:
        place = self._place(checkpoint.shard, checkpoint.name)
        with self._reaching("reading"):
            self._files.invalidate_cache()
            try:
                listed = {
                    _last(each["name"]): each["size"] for each in self._files.ls(place, detail=True)
                }
            except FileNotFoundError:
                return False
        return all(listed.get(file.name) == file.bytes for file in checkpoint.files)

    def _check_files(self, checkpoint: Checkpoint) -> None:
        for file in checkpoint.files:
            for _ in self._read(checkpoint, file):
                pass

    def _names(self, shard: int) -> list[str]:
        self._files.invalidate_cache()
        try:
            listed = self._files.ls(f"{self._root}/{shard}", detail=False)
        except FileNotFoundError:
            return []
        return sorted(
            (name for path in listed if NAME.fullmatch(name := _last(path))), reverse=True
        )

    def _read_manifest(self, place: str) -> Checkpoint | None:
        try:
            with self._files.open(f"{place}/{MANIFEST}", "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        return decode_manifest(data, f"{place}/{MANIFEST}")

    # --- the archive's positions

    def archived(self, shard: int, identity: Identity) -> dict[str, int]:
        """By topic, the positions that were kept last; those of a topic of the same name with
        another id do not count."""
        with self._reaching("reading"):
            self._files.invalidate_cache()
            try:
                with self._files.open(self._place(shard, ARCHIVED), "rb") as file:
                    found = json.loads(file.read())
            except FileNotFoundError:
                return {}
        return {
            topic: found[topic]["offset"]
            for topic, topic_id in _topics(identity).items()
            if topic in found and found[topic]["id"] == topic_id
        }

    def keep_archived(self, shard: int, identity: Identity, offsets: Mapping[str, int]) -> None:
        """Keep the archive's positions in `<location>/<cluster>/<shard>/archived.json`."""
        ids = _topics(identity)
        data = json.dumps(
            {topic: {"id": ids[topic], "offset": offset} for topic, offset in offsets.items()},
            indent=1,
        )
        path = self._place(shard, ARCHIVED)
        with self._reaching("writing"):
            self._make_folder(f"{self._root}/{shard}")
            new = (
                f"{path}.new" if self._is_local else path
            )  # an object appears whole, a file under its name does not
            self._write(new, iter([data.encode()]))
            if self._is_local:
                self._files.mv(new, path)

    # --- restoring

    def fetch(self, checkpoint: Checkpoint, into: Path) -> None:
        """Fetch it into a folder that must not exist yet: all of it, checked, or nothing.

        Raises StoreCorrupt if any byte differs from its manifest; NoSpace.
        """
        place = self._place(checkpoint.shard, checkpoint.name)
        with self._copier.receiving(into) as part:
            self._copier.check_room(part, checkpoint)
            with self._reaching("reading"):
                for file in checkpoint.files:
                    write_file(self._read(checkpoint, file), part / file.name, file, place)
            self._copier.check(part, checkpoint, place)

    def restore(self, shard: int, identity: Identity, into: Path) -> Checkpoint | None:
        """Fetch the furthest one that is not damaged; None if there is none. Raises StoreCorrupt if
        all are damaged."""
        tried = []
        for checkpoint in self.kept(shard, identity):
            try:
                self.fetch(checkpoint, into)
            except StoreCorrupt as error:
                log.error("checkpoint damaged", shard=shard, name=checkpoint.name, why=str(error))
                tried.append(checkpoint.name)
            else:
                return checkpoint
        if tried:
            raise all_damaged(tried)
        return None

    def _read(self, checkpoint: Checkpoint, file: CheckpointFile) -> Iterator[bytes]:
        place = self._place(checkpoint.shard, checkpoint.name)
        try:
            source = self._files.open(f"{place}/{file.name}", "rb")
        except FileNotFoundError as error:
            raise StoreCorrupt(f"{place}/{file.name} is missing: use another checkpoint") from error
        with source:
            yield from check_bytes(chunks_of(source), file, place)

    # --- pruning

    def prune(self, shard: int, identity: Identity, keep: int) -> list[str]:
        """Remove all but the furthest `keep`, and incomplete ones older than these; return the
        names removed."""
        assert keep > 0, "no checkpoint would be left to start from"
        kept = self.kept(shard, identity)
        if len(kept) < keep:
            return []
        oldest = kept[keep - 1].name
        removed = []
        with self._reaching("removing"):
            complete = {checkpoint.name for checkpoint in kept}
            for name in self._names(shard):
                place = self._place(shard, name)
                if name < oldest and (
                    name in complete or not self._files.exists(f"{place}/{MANIFEST}")
                ):
                    self._remove(place)
                    removed.append(name)
        return removed

    def _remove(self, place: str) -> None:
        """Remove the manifest first, so that an incomplete checkpoint never counts."""
        with suppress(FileNotFoundError):
            self._files.rm_file(f"{place}/{MANIFEST}")
        if self._files.exists(place):
            self._files.rm(place, recursive=True)

    def _place(self, shard: int, name: str) -> str:
        return f"{self._root}/{shard}/{name}"

    @contextmanager
    def _reaching(self, doing: str) -> Iterator[None]:
        """Translate every error of the storage to Retry; each kind of storage has errors of its
        own."""
        try:
            yield
        except ChronosError:
            raise
        except Exception as error:
            cause = re.sub(r"//[^/@]*@", "//********@", f"{type(error).__name__}: {error}")
            raise Retry(
                f"{doing} at checkpoints.location {self._shown} failed ({cause}): is it there, "
                "with room, and may this process write there?"
            ) from error


def _for_this_user(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _topics(identity: Identity) -> dict[str, str]:
    """The ids of the shard's two topics, by name."""
    return {
        identity.delay_topic: identity.delay_topic_id,
        identity.progress_topic: identity.progress_topic_id,
    }


def _same(one: Checkpoint, other: Checkpoint) -> bool:
    return (one.identity, one.digest, one.remembered_ms) == (
        other.identity,
        other.digest,
        other.remembered_ms,
    )


def _last(path: Any) -> str:
    return str(path).rstrip("/").rpartition("/")[2]
