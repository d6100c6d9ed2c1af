"""The printing of `docs/reference/cli.md`, which is made from the declarations of the verbs; with
the argument `full`, of its long form on the site of the documentation."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from chronos.cli.app import app

_HEAD = """\
# Command line reference

<!-- Made by `python -m chronos.cli{argument}`; change `chronos/cli/app.py`, `options.py` or the module of the verb instead. -->

Commands for a running service send HTTP requests to `--server` (`CHRONOS_SERVER`). Data goes to stdout, everything else to
stderr. `-o json` prints the JSON objects of the [HTTP interface](http.md), each on one line. `chronos --version` prints
the version, `chronos --install-completion` installs completion for your shell.
{rest}
| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed: too late, rejected, not supported, or a problem was found |
| 2 | wrong usage or configuration, or a Python package is missing |
| 3 | unreachable: the service, its log or its coordinator; or PySpark or Java is missing |
| 4 | not found |
| 5 | a store is damaged |
| 6 | `audit`: no broken promise was found, but not every outcome is proved |
| 7 | `audit`: no broken promise was found, but an objective of `--slo` is missed |
"""  # noqa: E501


_REST = """
`chronos VERB --help` prints the options of a verb; the [site](../index.md) that `./scripts/docs`
builds has them on this page.
"""


def contents() -> str:
    """`docs/reference/cli.md`: the rules of all verbs, and a table of the verbs."""
    lines = [
        f"| `chronos {name}` | {_first_sentence(command)} |\n"
        for name, command in _commands()
        if not getattr(command, "no_args_is_help", False)
    ]
    head = _HEAD.format(argument="", rest=_REST)
    return "".join([head, "\n## Verbs\n\n| verb | meaning |\n|---|---|\n", *lines])


def reference() -> str:
    """The page of the site: every verb with its arguments and options."""
    verbs = [_verb(name, command) for name, command in _commands()]
    return "".join([_HEAD.format(argument=" full", rest=""), *verbs])


def _commands() -> Iterator[tuple[str, Any]]:
    """All verbs with their full names, each followed by those below it."""
    yield from _below(typer.main.get_command(app), "")


def _below(group: Any, above: str) -> Iterator[tuple[str, Any]]:
    for name, command in getattr(group, "commands", {}).items():
        yield above + name, command
        yield from _below(command, f"{above}{name} ")


def _first_sentence(command: Any) -> str:
    text = " ".join((command.help or "").split())
    return text.split(". ", 1)[0].rstrip(".").replace("|", "\\|")


def _verb(name: str, command: Any) -> str:
    text = inspect.cleandoc(command.help or "")
    parts = [f"\n## chronos {name}\n\n{_prose(text)}\n"]
    arguments = [found for found in command.params if found.param_type_name == "argument"]
    options = [
        found
        for found in command.params
        if found.param_type_name == "option" and found.name != "help" and not found.hidden
    ]
    usage = " ".join(
        ["chronos", name, *(_argument(found) for found in arguments), "[OPTIONS]" * bool(options)]
    )
    if arguments or options or not hasattr(command, "commands"):
        parts.append(f"\nUsage: `{usage.strip()}`\n")
    if arguments or options:
        parts.append("\n| | | meaning |\n|---|---|---|\n")
    parts += [f"| `{_cell(_argument(found))}` | | {found.help or ''} |\n" for found in arguments]
    parts += [_option(found) for found in options]
    return "".join(parts)


def _argument(found: Any) -> str:
    shown = str(found.metavar or found.name.upper()).strip("[]")
    return shown if found.required else f"[{shown}]"


def _cell(text: str) -> str:
    """Text with its pipes escaped for the cell of a table."""
    return text.replace("|", "\\|")


def _option(found: Any) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(found.opts, key=len))
    value = "" if found.is_flag else f" `{found.metavar}`"
    notes = []
    if found.required:
        notes.append("required")
    if found.default not in (None, False, ...) and not found.required:
        notes.append(f"default `{getattr(found.default, 'value', found.default)}`")
    if found.envvar:
        notes.append(f"`{found.envvar}`")
    return f"| {names}{_cell(value)} | {', '.join(notes)} | {found.help or ''} |\n"


def _prose(text: str) -> str:
    """Help as Markdown: examples become code, lists stay."""
    out: list[str] = []
    for paragraph in text.split("\n\n"):
        lines = paragraph.removeprefix("\b\n").splitlines()
        if paragraph.startswith("\b") and lines[0].endswith(":"):
            out.append(
                "\n".join([lines[0], "", "```", *(line.strip() for line in lines[1:]), "```"])
            )
        else:
            out.append(" ".join(line.strip() for line in lines))
    return "\n\n".join(out)


if __name__ == "__main__":
    sys.stdout.write(reference() if sys.argv[1:] == ["full"] else contents())
