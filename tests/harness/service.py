"""A real `chronos serve` process that can be started, killed, frozen and queried over HTTP.

It does not use pytest: `scripts/bench` and `scripts/chaos` use it too.
"""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.command import Forked, forks
from tests.harness.constants import ENVIRONMENT
from tests.harness.ports import free_port
from tests.harness.process import freeze
from tests.harness.waiting import NotInTime, is_in_time

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

TRY_AGAIN_S = 30.0
"""How long a request is sent again that a node cannot answer yet."""

NOT_APPLIED = "urn:chronos:problem:not-applied"
"""The type of that answer."""


def is_unapplied(status: int, answer: Any) -> bool:
    """Return whether a node answered that it has not applied its log."""
    return status == 503 and isinstance(answer, dict) and answer["type"] == NOT_APPLIED


class ServiceError(Exception):
    """The service failed, or gave another answer; the text ends with its log."""


class ServiceNotInTime(ServiceError, NotInTime):
    """The service did not do something in time; the text ends with its log."""


class Service:
    """One node of Chronos in a separate process. Its data is kept in `data_dir` across restarts."""

    forked = False
    """Fork the process from one that has loaded Chronos, which saves most of a start. It has some
    more memory than a node, and the seed of hashes of other forked nodes; one with other constants
    is never forked."""

    def __init__(
        self,
        data_dir: Path,
        *,
        settings: dict[str, object] | None = None,
        bootstrap: str | None = None,
        environ: dict[str, str] | None = None,
        output: Path | None = None,
        constants: dict[str, object] | None = None,
        module: str = "chronos",
    ) -> None:
        """`constants`: other values of constants of Chronos, see `tests.harness.constants`.
        `module` is the module that Python runs; it takes the arguments of `chronos`."""
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = output or data_dir.with_name(data_dir.name + ".log")
        self._environ = environ or {}
        self._module = module
        if constants:
            self._environ = {**self._environ, ENVIRONMENT: json.dumps(constants)}
            self._module = "tests.harness.constants" if module == "chronos" else module
        self.settings: dict[str, object] = {
            "node.data_dir": data_dir,
            "admin.port": self.port,
            "logging.format": "json",
            "limits.disk_reserve": "1MB",
        }
        if bootstrap is not None:
            self.settings |= {"log.kind": "kafka", "log.kafka.bootstrap_servers": bootstrap}
        self.settings |= settings or {}
        self.token = ""
        """Sent with every request, if the service needs one."""
        self.context: ssl.SSLContext | None = None
        """For requests to a service with TLS."""
        self.arguments: list[str] = []
        """Further options of `chronos serve`."""
        self._process: subprocess.Popen[bytes] | Forked | None = None

    # --- incarnation

    def launch(self) -> None:
        """Start the process without waiting."""
        assert not self.running
        arguments = ["serve", *self.arguments]
        for path, value in self.settings.items():
            arguments += ["--set", f"{path}={value}"]
        environ = {**os.environ, **self._environ}
        with self.log_path.open("ab") as output:
            if self.forked and ENVIRONMENT not in self._environ:
                with open(os.devnull) as nothing:
                    files = [nothing.fileno(), output.fileno(), output.fileno()]
                    self._process = forks().start(
                        arguments, environ, None, files, module=self._module
                    )
                return
            command = [sys.executable, "-m", self._module, *arguments]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
            )

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start the process and wait until it is ready."""
        self.launch()
        self.wait_ready(timeout_s=timeout_s)
        return self

    def wait_ready(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until `/readyz` answers 200."""
        self.wait_until(self.is_ready, "become ready", timeout_s=timeout_s)

    def is_ready(self) -> bool:
        """Return whether `/readyz` answers 200."""
        try:
            with urllib.request.urlopen(
                self.url + "/readyz", timeout=5, context=self.context
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_until(
        self,
        condition: Callable[[], bool],
        what: str,
        *,
        timeout_s: float = 30.0,
        every_s: float = 0.02,
    ) -> None:
        """Poll until the condition is true; ServiceNotInTime with the end of the log if it is not
        in time, and ServiceError if the process exits before."""

        def holds() -> bool:
            if condition():
                return True
            if self._process is not None and self._process.poll() is not None:
                raise ServiceError(
                    f"chronos exited with {self._process.returncode} before it did "
                    f"{what}\n{self.tail()}"
                )
            return False

        if not is_in_time(holds, deadline_s=time.monotonic() + timeout_s, every_s=every_s):
            raise ServiceNotInTime(f"chronos did not {what} within {timeout_s:g} s\n{self.tail()}")

    @property
    def running(self) -> bool:
        """True if the process exists."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        return self._end(signal.SIGTERM)

    def wait_exit(self, *, timeout_s: float = 30.0) -> int:
        """Wait until the process exits by itself; return the exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ServiceNotInTime(
                f"chronos did not exit within {timeout_s:g} s\n{self.tail()}"
            ) from None

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ServiceNotInTime(
                f"chronos did not exit within {STOP_TIMEOUT_S:g} s of {number.name}\n{self.tail()}"
            ) from None

    def freeze(self) -> None:
        """SIGSTOP."""
        freeze(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        self.send_signal(signal.SIGCONT)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        assert self._process is not None
        self._process.send_signal(number)

    def close(self) -> None:
        """Kill the process in any state."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- requests

    def ask(
        self, method: str, path: str, body: object = None, *, timeout_s: float = 60.0
    ) -> tuple[int, Any]:
        """One HTTP request; `(status, decoded JSON or text)`."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s, context=self.context) as answer:
                return answer.status, _decoded(answer.read(), answer.headers.get_content_type())
        except urllib.error.HTTPError as error:
            return error.code, _decoded(error.read(), error.headers.get_content_type())

    def get(self, path: str, **parameters: object) -> Any:
        """A GET that must succeed; asked again, as its hint says, while the node has not applied
        its log."""
        query = "?" + urllib.parse.urlencode(parameters) if parameters else ""
        until_s = time.monotonic() + TRY_AGAIN_S
        status, answer = self.ask("GET", path + query)
        while is_unapplied(status, answer) and time.monotonic() < until_s:
            status, answer = self.ask("GET", path + query)
        if status >= 300:
            raise ServiceError(f"GET {path} answered {status}: {answer}\n{self.tail()}")
        return answer

    def post(self, path: str, body: object) -> Any:
        """A POST that must succeed."""
        status, answer = self.ask("POST", path, body)
        if status >= 300:
            raise ServiceError(f"POST {path} answered {status}: {answer}\n{self.tail()}")
        return answer

    def post_until_done(self, path: str) -> None:
        """POST an operation on the cluster until it is done: asked again while it is not, as on a
        machine overloaded for some seconds."""
        self.wait_until(
            lambda: self.ask("POST", path)[1].get("result") == "done",
            f"do POST {path}",
            timeout_s=60.0,
            every_s=0.5,
        )

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The lines of the log in JSON, oldest first; with names, those of these events."""
        lines = [
            json.loads(line)
            for line in self.log_path.read_text().splitlines()
            if line.startswith("{")
        ]
        return [line for line in lines if not names or line["event"] in names]

    def records(self, topic: str, count: int) -> list[dict[str, Any]]:
        """Wait for the first records of a topic."""
        path = f"/v1/topics/{topic}/records"
        self.wait_until(lambda: self.ask("GET", path)[0] == 200, f"make {topic}")
        found: list[dict[str, Any]] = []
        offset = 0
        while len(found) < count:
            answer = self.get(path, offset=offset, wait="20s")
            assert answer["records"], f"only {len(found)} of {count} records came"
            found += answer["records"]
            offset = answer["next_offset"]
        return found

    def shards(self) -> list[dict[str, Any]]:
        """`/v1/shards`."""
        return list(self.get("/v1/shards")["shards"])

    def leaders(self) -> set[str]:
        """The nodes that are assigned shards to lead, as this node sees it."""
        return {shard["master"] for shard in self.shards() if shard["master"] is not None}

    def pending(self) -> int:
        """Messages pending in all shards."""
        return sum(int(shard["pending"]) for shard in self.shards())

    def accepted(self) -> int:
        """Messages accepted in all shards since they began, pending or settled by now."""
        return sum(int(shard["totals"]["accepted"]) for shard in self.shards())

    def delivered(self) -> int:
        """Messages delivered in all shards since they began."""
        return sum(int(shard["totals"]["delivered"]) for shard in self.shards())

    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise ServiceError("no VmRSS")

    def cpu_s(self) -> float:
        """Processor time that the process has used, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tail(self, lines: int = 40) -> str:
        """The last lines of its log."""
        if not self.log_path.exists():
            return "(no output)"
        logged = self.log_path.read_text(errors="replace").splitlines()
        # Python's report of a crash is long, and its first lines name the cause.
        crash = next(
            (at for at, line in enumerate(logged) if line.startswith("Fatal Python error")),
            len(logged),
        )
        return "\n".join(logged[min(crash, max(0, len(logged) - lines)) :])


def consecutive_ports(service: Service, count: int) -> None:
    """Give the service the first of so many ports in a row."""
    ports, first = {service.port}, service.port
    while not set(range(first, first + count)) <= ports:
        ports.add(free_port())
        first = next((port for port in ports if set(range(port, port + count)) <= ports), first)
    service.port = first
    service.url = f"http://127.0.0.1:{service.port}"
    service.settings["admin.port"] = service.port


def _decoded(data: bytes, kind: str) -> Any:
    return json.loads(data) if kind.endswith("json") and data else data.decode()
