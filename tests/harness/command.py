"""Commands and nodes in processes of their own, forked from one that has loaded Chronos: a tenth of
the cost of a new Python.

    done = run("get", "x", server=service.url)
    assert (done.code, done.out) == (0, "...")

The forked process runs `chronos.__main__`, or another module, on the files that it is given. A
command ends as an interpreter does, flushing included; a node ends the interpreter."""

from __future__ import annotations

import atexit
import gc
import json
import math
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from msgspec import Struct

ROOT = Path(__file__).parents[2]

TIMEOUT_S = 60.0
"""A command that takes longer is ended."""


class Forked:
    """A forked process, with the part of the interface of `subprocess.Popen` that is used. Any
    thread may call. The process is killed when this value is gone."""

    def __init__(self, reports: int) -> None:
        """`reports`: the end of a pipe that gives the process id, and in the end the exit code."""
        self._reports = os.fdopen(reports, "rb", 0)
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.pid = self._report(TIMEOUT_S)

    def __del__(self) -> None:
        self._reports.close()

    def _report(self, timeout_s: float) -> int:
        ready = select.poll()  # select is for the first 1,024 files only
        ready.register(self._reports, select.POLLIN)
        if not ready.poll(math.ceil(timeout_s * 1_000)):
            raise subprocess.TimeoutExpired("chronos", timeout_s)
        line = self._reports.readline()
        if not line:
            raise ChildProcessError("the process that forks has ended; its error is on stderr")
        return int(line)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code, negative for a signal. Raises
        subprocess.TimeoutExpired."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left_s = 0.1 if deadline_s is None else min(0.1, deadline_s - time.monotonic())
            with self._lock, suppress(subprocess.TimeoutExpired):
                if self.returncode is None:
                    self.returncode = self._report(max(0.0, left_s))
            if self.returncode is None and left_s <= 0:
                raise subprocess.TimeoutExpired("chronos", timeout or 0.0)
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code; None before the end."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        with suppress(ProcessLookupError):
            if self.returncode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)


class Forks:
    """One process that has loaded Chronos, and forks for each command and node. Any thread may
    call."""

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

    def start(
        self,
        arguments: Sequence[str | bytes],
        environ: Mapping[str, str],
        cwd: Path | None,
        files: Sequence[int],
        *,
        module: str = "chronos",
        ends_quickly: bool = False,
    ) -> Forked:
        """Fork a process that runs `chronos` with these arguments. `files`: stdin, stdout and
        stderr. `module`: another one that does. `ends_quickly`: it does not free its memory at its
        end."""
        request = {
            "module": module,
            "arguments": [os.fsdecode(one) for one in arguments],
            "environ": dict(environ),
            "cwd": str(cwd or Path.cwd()),
            "ends_quickly": ends_quickly,
        }
        sys.audit("chronos.fork", arguments)
        reports, written = os.pipe()
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [*files, written])
        except OSError:
            os.close(reports)
            raise
        finally:
            os.close(written)
        return Forked(reports)


def _serve(requests: socket.socket) -> tuple[str, bool]:
    """Fork a monitor for each request, which forks the process of the request; return in that
    process its module and whether it ends quickly, and exit once there are no more requests."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Ctrl-C is for the tests, and for the processes that they started.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, files, _, _ = socket.recv_fds(requests, 1_000_000, 4)
        if not data:
            sys.exit()
        if os.fork():
            for file in files:
                os.close(file)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        requests.close()
        *streams, reports = files
        pid = os.fork()
        if pid:
            _monitor(pid, streams, reports)
        signal.signal(signal.SIGINT, interrupt)
        os.close(reports)
        for number, file in enumerate(streams):
            os.dup2(file, number)
            os.close(file)
        request = json.loads(data)
        os.environ.clear()
        os.environ.update(request["environ"])
        os.chdir(request["cwd"])
        sys.argv = ["chronos", *request["arguments"]]
        return str(request["module"]), bool(request["ends_quickly"])


def _monitor(pid: int, streams: Sequence[int], reports: int) -> NoReturn:
    """Report the id of a process and its exit code; kill it once nobody reads the report."""
    try:
        for file in (0, 1, 2, *streams):
            os.close(file)
        os.write(reports, b"%d\n" % pid)
        ended = os.pidfd_open(pid)
        watched = select.poll()
        watched.register(ended, select.POLLIN)
        watched.register(reports, 0)  # tells of an error: the reader is gone
        if all(file != ended for file, _ in watched.poll()):
            os.kill(pid, signal.SIGKILL)
        os.write(reports, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    finally:
        os._exit(0)


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
def forks() -> Forks:
    """The process that others are forked from; it ends with this one."""
    return Forks()


def run(
    *arguments: object,
    server: str | None = None,
    stdin: bytes = b"",
    cwd: Path | None = None,
    stdout: int | None = None,
    archive: str | None = None,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Done:
    """Run a command to its end. `archive`: the one of the environment. `variables`: further ones of
    it. Raises subprocess.TimeoutExpired after `timeout_s`, and ends the command."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CHRONOS_")}
    if server is not None:
        environ["CHRONOS_SERVER"] = server
    if archive is not None:
        environ["CHRONOS_ARCHIVE"] = archive
    environ |= variables or {}
    texts = [one if isinstance(one, bytes) else str(one) for one in arguments]
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        files = [given.fileno(), out.fileno() if stdout is None else stdout, err.fileno()]
        forked = forks().start(texts, environ, cwd, files, ends_quickly=True)
        try:
            code = forked.wait(timeout_s)
        except subprocess.TimeoutExpired:
            forked.kill()
            raise
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read().decode())


def _main(module: str) -> None:
    """As `python -m`, for programs that ask for the main module too."""
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from importlib import import_module
    from pkgutil import walk_packages

    from chronos import cli

    for module in walk_packages(cli.__path__, "chronos.cli."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in (
        "admin",
        "client",
        "config",
        "node",
        "adapters.kafka.log",
        "adapters.embedded.log",
    ):
        import_module(f"chronos.{name}")
    import_module("chronos.admin.http.openapi").encoded()
    gc.freeze()
    name, ends_quickly = _serve(socket.socket(fileno=int(sys.argv[1])))
    if ends_quickly:
        _end(partial(_main, name))
    _main(name)
