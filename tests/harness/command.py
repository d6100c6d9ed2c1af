"""Commands in processes of their own, forked from one that has loaded the command line: a tenth of
the cost of a new Python.

    done = run("get", "x", server=service.url)
    assert (done.code, done.out) == (0, "...")

The forked process runs `chronos.cli.main` on the files that it is given and ends as an interpreter
does, flushing included."""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from msgspec import Struct

ROOT = Path(__file__).parents[2]

TIMEOUT_S = 60.0
"""A command that takes longer is ended."""


class Commands:
    """One process that has loaded the command line, and forks for each command."""

    def __init__(self) -> None:
        self._socket, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.command", str(others.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[others.fileno()],
            cwd=ROOT,
        )
        others.close()
        self._socket.settimeout(TIMEOUT_S)

    def run(
        self,
        arguments: Sequence[str | bytes],
        environ: Mapping[str, str],
        cwd: Path | None,
        files: Sequence[int],
    ) -> int:
        """Run a command to its end and return its exit code. `files`: stdin, stdout and stderr."""
        request = {
            "arguments": [os.fsdecode(one) for one in arguments],
            "environ": dict(environ),
            "cwd": str(cwd or Path.cwd()),
        }
        socket.send_fds(self._socket, [json.dumps(request).encode()], files)
        pid = int(self._socket.recv(100))
        try:
            return int(self._socket.recv(100))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise


def _serve(requests: socket.socket) -> None:
    """Fork for each request; return in the forked process, and exit once there are no more
    requests."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, 1_000_000, 3)
        if not data:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            requests.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            request = json.loads(data)
            os.environ.clear()
            os.environ.update(request["environ"])
            os.chdir(request["cwd"])
            sys.argv = ["chronos", *request["arguments"]]
            return
        for file in files:
            os.close(file)
        requests.send(b"%d" % pid)
        requests.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _end(main: Callable[[], object]) -> NoReturn:
    """Run a program and end the process as an interpreter does, but for freeing its memory: in a
    forked process that copies every page, which takes longer than most commands."""
    code: object = 0
    try:
        main()
    except SystemExit as error:
        code = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    status = code if isinstance(code, int) else int(code is not None)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # as an interpreter does, whatever the stream raises
            status = 120
    os._exit(status & 0xFF)


class Done(Struct):
    """The exit code and the output of a command."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode(errors="replace")

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@cache
def _commands() -> Commands:
    """The process that commands are forked from; it ends with this one."""
    return Commands()


def run(
    *arguments: object,
    server: str | None = None,
    stdin: bytes = b"",
    cwd: Path | None = None,
    stdout: int | None = None,
    archive: str | None = None,
) -> Done:
    """Run a command to its end. `archive`: the one of the environment."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CHRONOS_")}
    if server is not None:
        environ["CHRONOS_SERVER"] = server
    if archive is not None:
        environ["CHRONOS_ARCHIVE"] = archive
    texts = [one if isinstance(one, bytes) else str(one) for one in arguments]
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        code = _commands().run(
            texts,
            environ,
            cwd,
            [given.fileno(), out.fileno() if stdout is None else stdout, err.fileno()],
        )
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read().decode())


if __name__ == "__main__":
    from importlib import import_module
    from pkgutil import iter_modules

    from chronos import cli

    for module in iter_modules(cli.__path__, "chronos.cli."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in ("chronos.client", "chronos.config"):
        import_module(name)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _end(cli.main)
