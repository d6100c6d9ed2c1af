"""Files of tokens for services in tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from chronos.admin.http.tokens import digest


def tokens_file(folder: Path, roles: Mapping[str, Sequence[str]]) -> Path:
    """Write a file of tokens with these roles, each named as it is; its path."""
    tokens = [
        {"name": name, "sha256": digest(name), "roles": given} for name, given in roles.items()
    ]
    path = folder / "tokens.yaml"
    path.write_text(json.dumps({"format": 2, "tokens": tokens}))
    return path


TOKENS: dict[str, tuple[list[str], list[str]]] = {
    "reader": (["read"], ["*"]),
    "writer": (["write"], ["*"]),
    "operator": (["operate"], ["*"]),
    "everything": (["read", "write", "operate"], ["*"]),
    "limited": (["read", "write", "operate"], ["mine", "mine.*"]),
}
"""Roles and targets by the name of the token, which is also the token."""


def old_tokens_file(folder: Path, tokens: dict[str, tuple[list[str], list[str]]]) -> Path:
    """Write a file of format 1, in which each token has roles and targets; its path."""
    path = folder / "tokens.yaml"
    entries = [
        {"name": name, "sha256": digest(name), "roles": roles, "targets": targets}
        for name, (roles, targets) in tokens.items()
    ]
    path.write_text(json.dumps({"tokens": entries}))
    return path
