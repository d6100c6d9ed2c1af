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
    path.write_text(json.dumps({"tokens": tokens}))
    return path


TOKENS: dict[str, tuple[list[str], list[str]]] = {
    "reader": (["read", "payload"], ["*"]),
    "writer": (["write"], ["*"]),
    "operator": (["operate"], ["*"]),
    "everything": (["read", "payload", "write", "operate"], ["*"]),
    "limited": (["read", "payload", "write", "operate"], ["mine", "mine.*"]),
}
"""Roles and targets by the name of the token, which is also the token."""


def limited_tokens_file(folder: Path, tokens: dict[str, tuple[list[str], list[str]]]) -> Path:
    """Write a file in which each token has roles and targets, and may write every id; its path."""
    path = folder / "tokens.yaml"
    entries = [
        {"name": name, "sha256": digest(name), "roles": roles, "targets": targets, "ids": ["*"]}
        for name, (roles, targets) in tokens.items()
    ]
    path.write_text(json.dumps({"tokens": entries}))
    return path
