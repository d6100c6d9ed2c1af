"""The file of a voter: term, vote, incarnation and the register, replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from chronos.adapters.durable import replace_file
from chronos.core.raft.register import Disk
from chronos.errors import Stop

FORMAT = 1


class _File(Struct, frozen=True, kw_only=True):
    format: int
    node: str
    disk: Disk


def read(path: Path, node: str) -> Disk:
    """Return the content of the file; an empty one if there is none yet. Raises Stop if it cannot be read."""
    try:
        found = msgspec.msgpack.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return Disk()
    except (OSError, msgspec.MsgspecError) as error:
        raise Stop(
            f"{path} cannot be read ({error}); it holds the vote of this node: restore it, or remove it"
        ) from None
    if found.format != FORMAT or found.node != node:
        raise Stop(f"{path} is of node {found.node} (format {found.format}), and this is node {node}")
    return found.disk


def write(path: Path, node: str, disk: Disk) -> None:
    """Replace the file durably. Raises OSError."""
    replace_file(path, msgspec.msgpack.encode(_File(format=FORMAT, node=node, disk=disk)))
