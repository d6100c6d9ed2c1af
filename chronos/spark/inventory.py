"""The inventory of an archive: the files that each batch wrote, with their sizes and their numbers
of rows.

    <location>/_files/<folder>.json    {"files": {"<path below the folder>": [<bytes>, <rows>]}}

A batch is recorded when all its files are written, and its record is removed before its files are:
a folder without a record may be incomplete. Law: a recorded file that is missing or has another
size, and a file that was added to a recorded folder, are reported before a job judges or sends
anything."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from chronos.errors import ArchiveFailed, ArchiveUnusable
from chronos.spark.storage import ArchiveStorage

FILES = "_files"
"""Folder of the records."""

THREADS = 16
"""Records read at a time: on object storage each takes some tens of milliseconds."""

NAMED = 3
"""Most files that an error names."""

Files = Mapping[str, tuple[int, int]]
"""Bytes and rows of each Parquet file, by its path below a folder."""


class Inventory(Struct, frozen=True, kw_only=True):
    """The recorded files of an archive, compared with those that are there."""

    files: int
    """Recorded files."""
    rows: int
    """Their rows."""
    problems: list[str]
    """One line for each file that is missing, changed, or was added to a recorded folder."""
    unrecorded: list[str]
    """Folders with files and without a record."""


def record(storage: ArchiveStorage, folder: str, files: Files) -> None:
    """Record the files of a folder, once all are written."""
    storage.write_json(
        _path(folder), {"files": {path: list(found) for path, found in sorted(files.items())}}
    )


def forget(storage: ArchiveStorage, folder: str) -> None:
    """Remove the record of a folder, before its files are removed or replaced."""
    storage.remove_file(_path(folder))


def take(storage: ArchiveStorage, tables: Iterable[str], *, rows: bool) -> Inventory:
    """Compare the recorded files with those of these folders below the archive; with `rows` the
    number of rows in each file too."""
    tables = tuple(tables)
    known = {
        folder: files
        for folder, files in _records(storage).items()
        if folder.split("/")[0] in tables
    }
    found: dict[str, dict[str, int]] = {}
    for table in tables:
        for path, size in storage.files(table, recursive=True):
            if path.endswith(".parquet") and not any(
                part.startswith("_") for part in path.split("/")
            ):
                folder, name = _split(f"{table}/{path}", known)
                found.setdefault(folder, {})[name] = size
    problems = []
    for folder, files in sorted(known.items()):
        different = list(_different(storage, folder, files, found.get(folder, {}), rows=rows))
        # A record that is gone by now belonged to the output of a killed run, which another run has
        # just removed.
        if different and storage.exists(_path(folder)):
            problems += different
    return Inventory(
        files=sum(map(len, known.values())),
        rows=sum(count for files in known.values() for _, count in files.values()),
        problems=problems,
        unrecorded=sorted(
            folder for folder in found if folder not in known and "-empty" not in folder
        ),
    )


def need_whole(storage: ArchiveStorage, tables: Iterable[str]) -> None:
    """Raise ArchiveUnusable if a recorded file of these folders is missing, has another size, or
    was added."""
    problems = take(storage, tables, rows=False).problems
    if problems:
        more = f", and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
        raise ArchiveUnusable(
            f"{storage.uri} is not whole: {'; '.join(problems[:NAMED])}{more}. Nothing can be "
            "proved or sent from it: restore the files from a copy (`chronos archive verify` "
            "names all), or archive to another location"
        )


def _records(storage: ArchiveStorage) -> dict[str, dict[str, tuple[int, int]]]:
    """Bytes and rows of each recorded file, by folder."""
    names = [name for name, _ in storage.files(FILES, recursive=True) if name.endswith(".json")]
    with ThreadPoolExecutor(THREADS) as pool:
        values = pool.map(lambda name: storage.read_json(f"{FILES}/{name}"), names)
        return {
            name.removesuffix(".json"): {
                path: (size, rows) for path, (size, rows) in value["files"].items()
            }
            for name, value in zip(names, values, strict=True)
            if value is not None  # removed since it was listed
        }


def _split(path: str, known: Mapping[str, object]) -> tuple[str, str]:
    """The folder of a file that has, or would have, a record; and the path below it."""
    parts = path.split("/")
    for depth in range(len(parts) - 1, 1, -1):
        if "/".join(parts[:depth]) in known:
            return "/".join(parts[:depth]), "/".join(parts[depth:])
    return "/".join(parts[:2]), "/".join(parts[2:])


def _different(
    storage: ArchiveStorage, folder: str, files: Files, found: Mapping[str, int], *, rows: bool
) -> Iterable[str]:
    for path, (size, count) in sorted(files.items()):
        there = found.get(path)
        if there is None:
            yield f"{folder}/{path} is missing ({count:,} rows)"
        elif there != size:
            yield f"{folder}/{path} has {there:,} bytes, and {size:,} were written"
        elif rows:
            try:
                counted = storage.rows_of(f"{folder}/{path}")
            except ArchiveFailed as error:
                yield str(error)
                continue
            if counted != count:
                yield f"{folder}/{path} has {counted:,} rows, and {count:,} were written"
    for path in sorted(found.keys() - files.keys()):
        yield f"{folder}/{path} was not written by Chronos: its rows would count twice"


def _path(folder: str) -> str:
    return f"{FILES}/{folder}.json"
