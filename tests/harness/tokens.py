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
