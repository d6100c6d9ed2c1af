"""The programs in docs/how-to/schedule.md, run as they stand but for the address, the topics, the
id and the time.

The suite runs those that need no other tool than the tests; `scripts/clients --part snippets`
runs all of them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.clients.programs import (
    HERE,
    ROOT,
    RUN_S,
    go_environ,
    missing_tools,
    node_packages,
    run_program,
)
from tests.harness.broker import TOOL_OPTIONS
from tests.harness.java import jars, java
from tests.harness.pages import DOCS, blocks
from tests.integration.foreign import Tail

PAGE = DOCS / "how-to" / "schedule.md"

VALUE = b'{"order": 17}'
"""What every program writes."""


class Place(NamedTuple):
    """What the programs are run against."""

    bootstrap: str
    server: str
    """The address of the service's HTTP interface."""
    delay: str
    target: str

    def fill(self, text: str, id: str) -> str:
        """A program with the names of this place, whose message is due in a second."""
        names = {
            "localhost:9092": self.bootstrap,
            "http://127.0.0.1:7700": self.server,
            "localhost:7700": self.server,
            "chronos.delay": self.delay,
            "-to reminders": f"-to {self.target}",
            '"reminders"': f'"{self.target}"',
            "'reminders'": f"'{self.target}'",
            "topic:reminders": f"topic:{self.target}",
            "topic=reminders": f"topic={self.target}",
            "order-17-reminder": id,
            "plusSeconds(30)": "plusSeconds(1)",
            "30 * time.Second": "time.Second",
            "seconds=30": "seconds=1",
            "30_000": "1_000",
            "30s": "1s",
        }
        for old, new in names.items():
            text = text.replace(old, new)
        return text


class Snippet(NamedTuple):
    """A program of the page."""

    name: str
    """Its language, and a number if there are several."""
    language: str
    text: str

    def missing(self) -> str | None:
        """Why it cannot be run here; None if it can."""
        return missing_tools(*_TOOLS.get(self.language, ()))

    def run(self, place: Place, id: str, folder: Path) -> None:
        """Run it in a directory that is kept for further runs; raises ClientError."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="snippet.") as directory:
            _RUNS[self.language](place.fill(self.text, id), Path(directory), folder)


def snippets() -> list[Snippet]:
    """The programs of the page; Kafka's console producer is not among them, which the tests run
    with options of their own."""
    found = []
    for language in _RUNS:
        texts = [text for text in blocks(PAGE, language) if _is_program(language, text)]
        for number, text in enumerate(texts, 1):
            name = language if len(texts) == 1 else f"{language} {number}"
            found.append(Snippet(name, language, text))
    return found


def _is_program(language: str, text: str) -> bool:
    if language == "console":
        return "kcat" in text
    # The others continue a program above them.
    return language != "python" or "producer = Producer(" in text or "with Client(" in text


def _run(command: list[str], directory: Path, environ: Mapping[str, str] = {}) -> None:
    run_program(command, environ, "", RUN_S, directory)


def _java(text: str, directory: Path, _: Path) -> None:
    (directory / "Remind.java").write_text(text)
    logs = f"-Dlog4j2.configurationFile={ROOT / 'scripts/kafka/log4j2.properties'}"
    _run([java(), *TOOL_OPTIONS, logs, "-cp", f"{jars('kafka')}/*", "Remind.java"], directory)


def _python(text: str, directory: Path, _: Path) -> None:
    (directory / "remind.py").write_text(text)
    _run([sys.executable, "remind.py"], directory, {"PYTHONPATH": str(ROOT)})


def _go(text: str, directory: Path, folder: Path) -> None:
    (directory / "main.go").write_text(text)
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / "go" / name, directory)
    _run(["go", "run", "."], directory, go_environ(folder))


def _node(text: str, directory: Path, folder: Path) -> None:
    (directory / "remind.mjs").write_text(text)
    (directory / "node_modules").symlink_to(node_packages(folder) / "node_modules")
    _run(["node", "remind.mjs"], directory)


def _console(text: str, directory: Path, _: Path) -> None:
    commands = text.removeprefix("$ ")
    _run(["bash", "-euo", "pipefail", "-c", commands], directory)


def wait_for_message(tail: Tail, target: str, id: str) -> None:
    """Read until the message that a program wrote under an id has been delivered."""
    wanted = (id.encode(), VALUE)
    tail.until(
        lambda: wanted in [(got.header("chronos-id"), got.value) for got in tail.records[target]],
        f"the message {id}",
    )


_TOOLS = {"go": ("go",), "js": ("node", "npm"), "console": ("kcat",)}

_RUNS: Mapping[str, Callable[[str, Path, Path], None]] = {
    "java": _java,
    "python": _python,
    "go": _go,
    "js": _node,
    "console": _console,
}
