"""Clients that four generators make of the `/openapi.json` of a running service, and the linter.

Each has a program in tests/clients/generated, which schedules a message with an id, looks it up,
finds it in a list and cancels it; what became of the message is then asked of the service itself.
The versions and hashes of the generators are pinned beside the programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tests.clients.programs import (
    HERE,
    RUN_S,
    TOOLS,
    ClientError,
    go_environ,
    install_hashed,
    made,
    run_program,
    run_step,
)
from tests.harness.java import jars, java
from tests.harness.service import Service

PROGRAMS = HERE / "generated"

TOPIC = "generated"
"""The target of the messages."""

EXPECTED = ["scheduled", "pending", "true", "cancelled"]
"""What each program prints."""


class Generated(NamedTuple):
    """A client, made and compiled."""

    command: Sequence[str]
    environ: Mapping[str, str] = {}


class Generator(NamedTuple):
    """A generator of clients."""

    name: str
    tool: str
    """Key of TOOLS."""
    make: Callable[[Path, Path], Generated]
    """Makes the client of a description, in a directory that is kept for further runs."""

    def missing(self) -> str | None:
        """Why it cannot be run here; None if it can."""
        return TOOLS[self.tool]()


def run_generated(folder: Path, programs: Path) -> None:
    """Make every client whose tools are there, and run its program against a service with the
    embedded log; a line for each. Raises ClientError."""
    programs.mkdir(parents=True, exist_ok=True)
    with Service(folder / "generated") as service:
        service.start()
        description = folder / "openapi.json"
        description.write_text(json.dumps(service.get("/openapi.json"), indent=1))
        for generator in GENERATORS:
            if generator.missing():
                continue
            client = generator.make(description, programs)
            id = f"made by {generator.name}/1"
            command = [*client.command, service.url, id, TOPIC]
            output = run_program(command, client.environ, "", RUN_S, programs)
            printed = output.lower().split()
            state = service.get(f"/v1/messages/{quote(id, safe='')}")["state"]
            if printed != EXPECTED or state != "cancelled":
                raise ClientError(
                    f"{generator.name}: the program printed {printed}, not {EXPECTED}; its message "
                    f"is {state}"
                )
            print(f"scheduled, found and cancelled a message: {generator.name}", flush=True)
        assert service.stop() == 0, service.tail()


def _sources(language: str) -> list[Path]:
    return sorted(path for path in (PROGRAMS / language).iterdir() if path.is_file())


def _go(description: Path, folder: Path) -> Generated:
    def make(into: Path) -> None:
        source = into / "source"
        shutil.copytree(PROGRAMS / "go", source)
        (source / "chronos").mkdir()
        environ = go_environ(folder)
        tool = ["go", "tool", "oapi-codegen", "-generate", "types,client", "-package", "chronos"]
        run_step([*tool, "-o", "chronos/client.go", description], source, **environ)
        run_step(["go", "build", "-o", into / "main", "."], source, **environ)

    built = made(folder, "generated-go", [description, *_sources("go")], make)
    return Generated([str(built / "main")])


def _java(description: Path, folder: Path) -> Generated:
    fetched = jars("generators")
    (generator,) = fetched.glob("openapi-generator-cli-*.jar")
    path = os.pathsep.join(str(jar) for jar in sorted(fetched.glob("*.jar")) if jar != generator)

    def make(into: Path) -> None:
        package = "com.example.chronos"
        packages = ["--invoker-package", package, "--api-package", f"{package}.api"]
        packages += ["--model-package", f"{package}.model"]
        command: list[str | Path] = [java(), "-jar", generator, "generate", "-g", "java"]
        run_step([*command, *packages, "-i", description, "-o", into / "source"], into)
        sources = sorted((into / "source" / "src" / "main" / "java").rglob("*.java"))
        compiler = [java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "--release", "17"]
        classes: list[str | Path] = ["-nowarn", "-cp", path, "-d", into / "classes"]
        run_step([*compiler, *classes, *sources, PROGRAMS / "java" / "Main.java"], into)

    built = made(folder, "generated-java", [description, *_sources("java")], make)
    class_path = f"{built / 'classes'}{os.pathsep}{path}"
    return Generated([java(), "-cp", class_path, "Main"])


def _node(description: Path, folder: Path) -> Generated:
    def make(into: Path) -> None:
        for source in _sources("node"):
            shutil.copy(source, into)
        run_step(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], into)
        shutil.copy(description, into / "openapi.json")
        bin = into / "node_modules" / ".bin"
        lint = ["lint", "--extends", "recommended-strict", "openapi.json"]
        run_step(
            [bin / "redocly", *lint],
            into,
            REDOCLY_TELEMETRY="off",
            REDOCLY_SUPPRESS_UPDATE_NOTICE="true",
        )
        run_step([bin / "openapi-typescript", "openapi.json", "-o", "chronos.d.ts"], into)
        strict = ["--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"]
        run_step([bin / "tsc", *strict, "--types", "node", "main.mts"], into)

    built = made(folder, "generated-node", [description, *_sources("node")], make)
    return Generated(["node", str(built / "main.mjs")])


def _python(description: Path, folder: Path) -> Generated:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    requirements = PROGRAMS / "python" / "openapi-python-client.txt"
    packages = install_hashed(folder, f"openapi-python-client-python{version}", requirements)

    def make(into: Path) -> None:
        environ = {
            "PYTHONPATH": str(packages),
            "PATH": f"{packages / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
        output: list[str | Path] = [
            "--output-path",
            into / "chronos_generated",
            "--fail-on-warning",
        ]
        run_step([*command, "--path", description, *output], into, **environ)

    name = f"generated-python{version}"
    built = made(folder, name, [description, *_sources("python")], make)
    path = os.pathsep.join([str(built), str(packages)])
    return Generated([sys.executable, str(PROGRAMS / "python" / "main.py")], {"PYTHONPATH": path})


GENERATORS = (
    Generator("openapi-typescript", "node", _node),
    Generator("oapi-codegen", "go", _go),
    Generator("openapi-python-client", "python", _python),
    Generator("openapi-generator (Java)", "java", _java),
)
