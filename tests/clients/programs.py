"""The clients, each a program that is made and called in one way.

    <command> NAME write BOOTSTRAP TOPIC [commit|abort]
        Writes the records of the standard input, a JSON object a line: `key` and `value` in base64
        or null, `headers` as pairs of a name and a value in base64. With a last argument they are
        written in a transaction that ends so. Prints `{"written": N}` and exits with 0 once the
        broker has acknowledged all of them.
    <command> NAME read BOOTSTRAP TOPIC END
        Reads the first partition from its beginning, committed records only if the client can do
        that, and prints each as `{"value": "<base64>"}` until one with the value END.
    <command> NAME version
        Prints the client's version.

A program is made once: again only if its sources have changed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.harness.broker import TOOL_OPTIONS
from tests.harness.java import ROOT, jars, java
from tests.integration.foreign import Sent

HERE = Path(__file__).resolve().parent

SET_UP_S = 900.0
"""Bound of one step that fetches or compiles; usually seconds."""

RUN_S = 120.0
"""Bound of one run of a program; usually one or two seconds."""


class ClientError(Exception):
    """A program could not be made, or did not do what it was called for."""


class Client(NamedTuple):
    """A client with its settings."""

    name: str
    tool: str
    """Key of TOOLS."""
    partitioner: str
    """Its default partitioner, or the one that is set."""
    committed_only: bool | None = None
    """Whether it can read committed records only, as docs/concepts/exactly-once.md says; None: it
    is not a reader."""
    endings: Sequence[str] = ()
    """Ends of transactions that it can write."""
    module: str = ""
    """Of Python's clients: the module in tests/clients/python."""
    packages: str = ""
    """Of Python's clients: the requirements in tests/clients/python; without them those of this
    environment."""


BOTH = ("commit", "abort")

CLIENTS = {
    client.name: client
    for client in (
        Client("java", "java", "murmur2", True, BOTH),
        Client("confluent-kafka", "python", "CRC32", True, BOTH, module="confluent"),
        Client("sarama", "go", "FNV-1a", True),
        Client("kafka-go", "go", "round robin", False),
        Client("kafka-go-hash", "go", "FNV-1a (`&kafka.Hash{}`)", False),
        Client("franz-go", "go", "murmur2", True),
        Client("kafkajs", "node", "murmur2", True),
        Client("kafkajs-legacy", "node", "own hash (`LegacyPartitioner`)", True),
        Client(
            "kafka-python",
            "python",
            "murmur2",
            True,
            module="kafka_python",
            packages="kafka-python.txt",
        ),
        Client(
            "kafka-python-2",
            "python",
            "murmur2",
            True,
            module="kafka_python",
            packages="kafka-python-2.txt",
        ),
        Client(
            "kafka-python-ng",
            "python",
            "murmur2",
            False,
            module="kafka_python",
            packages="kafka-python-ng.txt",
        ),
        Client("aiokafka", "python", "murmur2", True, module="aio", packages="aiokafka.txt"),
        Client("http", "python", "murmur2", module="over_http"),
    )
}


# -------------------------------------------------------------------------------------------- Tools


def _java_is_missing() -> str | None:
    try:
        modules = subprocess.run(
            [java(), "--list-modules"], capture_output=True, text=True, timeout=RUN_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return "not installed: java"
    return (
        None
        if "jdk.compiler" in modules
        else "java has no compiler: a JDK is needed, not only a JRE"
    )


def missing_tools(*names: str) -> str | None:
    """Which of these commands are not installed; None if all are."""
    absent = [name for name in names if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


TOOLS: Mapping[str, Callable[[], str | None]] = {
    "java": _java_is_missing,
    "go": lambda: missing_tools("go"),
    "node": lambda: missing_tools("node", "npm"),
    "python": lambda: None,
}
"""For each tool a function that returns why it cannot be used, or None."""


def left_out(clients: Sequence[Client]) -> dict[str, str]:
    """The clients whose tool is missing, each with the reason."""
    reasons = {tool: TOOLS[tool]() for tool in {client.tool for client in clients}}
    return {
        client.name: reason for client in clients if (reason := reasons[client.tool]) is not None
    }


# ------------------------------------------------------------------------------------------- Set-up


def set_up(clients: Sequence[Client], folder: Path) -> list[Program]:
    """Make the programs of the clients in a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    makers = {"java": _java, "go": _go, "node": _node, "python": _python}
    return [makers[client.tool](client, folder) for client in clients]


def made(folder: Path, name: str, sources: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """The directory that `make` filled from these sources."""
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    into = folder / f"{name}-{digest}"
    if not into.exists():
        print(f"making {name}", file=sys.stderr)
        partial = Path(tempfile.mkdtemp(prefix=f"{name}-partial.", dir=folder))
        try:
            make(partial)
            partial.rename(into)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return into


def run_step(command: Sequence[str | Path], directory: Path, **environ: str) -> None:
    """Run one step of a set-up."""
    ran = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SET_UP_S,
        check=False,
    )
    if ran.returncode != 0:
        raise ClientError(
            f"{command[0]} failed with {ran.returncode} in {directory}\n{ran.stdout}{ran.stderr}".strip()  # noqa: E501
        )


def _java(client: Client, folder: Path) -> Program:
    source = HERE / "java" / "Main.java"
    kafka = jars("kafka")

    def make(into: Path) -> None:
        # Not `javac`: it may be that of another Java. It does not expand the asterisk when it is
        # started in this way.
        path = os.pathsep.join(map(str, kafka.glob("*.jar")))
        compiler = [
            java(),
            "-m",
            "jdk.compiler/com.sun.tools.javac.Main",
            "--release",
            "17",
            "-cp",
            path,
        ]
        run_step([*compiler, "-d", str(into), str(source)], HERE)

    classes = made(folder, "java", [source], make)
    logs = f"-Dlog4j2.configurationFile={ROOT / 'scripts/kafka/log4j2.properties'}"
    return Program(
        client,
        [
            java(),
            *TOOL_OPTIONS,
            logs,
            "-cp",
            f"{classes}{os.pathsep}{kafka}/*",
            "Main",
            client.name,
        ],
    )


def go_environ(folder: Path) -> dict[str, str]:
    """The environment of Go, which keeps its modules and what it has built in a directory."""
    return {
        "GOMODCACHE": str(folder / "go-modules"),
        "GOCACHE": str(folder / "go-build"),
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOTOOLCHAIN": "local",
    }


def _go(client: Client, folder: Path) -> Program:
    def make(into: Path) -> None:
        run_step(["go", "build", "-o", into / "clients", "."], HERE / "go", **go_environ(folder))

    built = made(folder, "go", sorted((HERE / "go").iterdir()), make)
    return Program(client, [str(built / "clients"), client.name])


def node_packages(folder: Path, program: Path = HERE / "node") -> Path:
    """The directory with the main.js of a program and the packages that it needs."""
    sources = [program / name for name in ("main.js", "package.json", "package-lock.json")]

    def make(into: Path) -> None:
        for source in sources:
            shutil.copy(source, into)
        run_step(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], into)

    return made(folder, "node", sources, make)


def _node(client: Client, folder: Path) -> Program:
    return Program(client, ["node", str(node_packages(folder) / "main.js"), client.name])


def install_hashed(folder: Path, name: str, requirements: Path) -> Path:
    """The directory with the packages of a file with versions and hashes."""

    def make(into: Path) -> None:
        pip: list[str | Path] = [sys.executable, "-m", "pip", "install", "--quiet"]
        pip += ["--disable-pip-version-check"]
        pip += ["--no-input", "--require-hashes", "--only-binary", ":all:", "--target", into]
        run_step([*pip, "-r", requirements], HERE)

    return made(folder, name, [requirements], make)


def _python(client: Client, folder: Path) -> Program:
    path = [str(ROOT)]
    if client.packages:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        name = f"{client.name}-python{version}"
        path.insert(0, str(install_hashed(folder, name, HERE / "python" / client.packages)))
    command = [sys.executable, "-m", f"tests.clients.python.{client.module}", client.name]
    return Program(client, command, {"PYTHONPATH": os.pathsep.join(path)})


# ----------------------------------------------------------------------------------------- Programs


class Program(NamedTuple):
    """A client that can be run."""

    client: Client
    command: Sequence[str]
    environ: Mapping[str, str] = {}

    def version(self) -> str:
        """The client's version."""
        return _version(self.client.name, tuple(self.command), tuple(self.environ.items()))

    def write(self, address: str, topic: str, records: Sequence[Sent], ending: str = "") -> None:
        """Write records, in a transaction if it has an end, and wait until all are acknowledged."""
        lines = "".join(_line(record) + "\n" for record in records)
        arguments = ["write", address, topic, *([ending] if ending else [])]
        output = run_program([*self.command, *arguments], self.environ, lines, RUN_S)
        acknowledged = [line for line in output.splitlines() if line.startswith("{")]
        if [json.loads(line) for line in acknowledged] != [{"written": len(records)}]:
            raise ClientError(
                f"{self.client.name} did not acknowledge {len(records)} records: {output[-500:]}"
            )

    def read(self, address: str, topic: str, end: bytes) -> list[bytes]:
        """The values that the client shows, with the last one."""
        output = run_program(
            [*self.command, "read", address, topic, end.decode()], self.environ, "", RUN_S
        )
        return [
            base64.b64decode(json.loads(line)["value"])
            for line in output.splitlines()
            if line.startswith("{")
        ]


@cache
def _version(name: str, command: tuple[str, ...], environ: tuple[tuple[str, str], ...]) -> str:
    return run_program([*command, "version"], dict(environ), "", RUN_S).strip().splitlines()[-1]


def _line(record: Sent) -> str:
    headers = [[name, _text(value)] for name, value in record.headers]
    return json.dumps({"key": _text(record.key), "value": _text(record.value), "headers": headers})


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def run_program(
    command: Sequence[str],
    environ: Mapping[str, str],
    lines: str,
    timeout_s: float,
    directory: Path = ROOT,
) -> str:
    """The standard output of a program that exits with 0; ClientError otherwise."""
    try:
        ran = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, **environ},
            input=lines,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise ClientError(f"{' '.join(command)} did not end within {timeout_s:g} s") from expired
    if ran.returncode != 0:
        raise ClientError(
            f"{' '.join(command)} failed with {ran.returncode}\n{ran.stderr.strip()[-3_000:]}"
        )
    return ran.stdout
