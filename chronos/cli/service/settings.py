"""`chronos config` and `chronos version`."""

import os
import sys

import typer

from chronos.cli.output import Format, put_json


def check_or_show(action: str, path: str | None, overrides: list[str], output: Format) -> None:
    """Every problem on stderr and exit code 2, or the settings in effect on stdout."""
    if action not in ("check", "show"):
        raise typer.BadParameter(f"{action!r} is neither check nor show")
    from chronos.config import load, show
    from chronos.errors import ConfigurationError

    try:
        config = load(path, os.environ, overrides)
    except ConfigurationError as error:
        if output is Format.json:
            put_json({"ok": False, "problems": error.problems})
        raise
    if action == "check":
        if output is Format.json:
            put_json({"ok": True, "problems": []})
        else:
            print("the configuration is valid")
        return
    text = show(config)
    if output is Format.json:
        import yaml

        put_json(yaml.safe_load(text))
    else:
        sys.stdout.write(text)


def show_version(output: Format) -> None:
    """Versions, for bug reports."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from chronos import __version__

    libraries = {}
    for name in ("aiohttp", "confluent-kafka", "msgspec", "rocksdict"):
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            libraries[name] = "missing"
    if output is Format.json:
        put_json({"chronos": __version__, "python": platform.python_version(), **libraries})
        return
    print(f"chronos {__version__}")
    rest = ", ".join(f"{name} {found}" for name, found in libraries.items())
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {rest}")
