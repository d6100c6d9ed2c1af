"""The packages of Chronos, and the others that each may import."""

from __future__ import annotations

# What each part of the package may import of the others. A part not named here has no place yet.
MAY_IMPORT = {
    "errors": set(),
    "zones": set(),
    "core": {"errors", "zones"},
    "ports": {"core", "errors"},
    "workers": {"ports", "core", "errors"},
    "adapters": {"ports", "core", "errors"},
    "config": {"core", "errors"},
    "spark": {"core", "errors"},
    "client": {"core", "errors"},
    "node": {"adapters", "workers", "ports", "core", "config", "errors", "zones", "chronos"},
    "admin": {"node", "workers", "ports", "core", "config", "errors", "zones", "chronos"},
    "cli": {
        "admin",
        "client",
        "logs",
        "node",
        "spark",
        "workers",
        "ports",
        "core",
        "config",
        "errors",
        "zones",
        "chronos",
    },
    "logs": {"config", "core"},
    "__main__": {"cli"},
    # The package itself, `chronos/__init__.py`: what a user of the library gets.
    "chronos": {"client", "core", "errors"},
}
