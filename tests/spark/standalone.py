"""A standalone Spark cluster on the loopback interface: a master and workers, each a process of its
own, from the installed PySpark."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.harness.ports import free_port
from tests.harness.process import Watchdog
from tests.harness.waiting import wait_until

START_S = 120.0
"""Most seconds until a process of the cluster has registered."""

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class StandaloneCluster:
    """A context that runs the cluster."""

    def __init__(self, folder: Path, environ: Mapping[str, str], *, workers: int = 2) -> None:
        """`folder`: for the logs and the work of executors. `environ`: what the processes inherit
        besides `PATH` and `JAVA_HOME`. Each worker has one core and 1 GiB for executors."""
        self.folder = folder
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self._environ = environ
        self._workers = workers
        self._processes: list[tuple[subprocess.Popen[bytes], Watchdog]] = []

    def __enter__(self) -> Self:
        try:
            self._start(
                "master",
                "org.apache.spark.deploy.master.Master",
                *("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"),
                ready="I have been elected leader",
            )
            for at in range(self._workers):
                self._start(
                    f"worker-{at}",
                    "org.apache.spark.deploy.worker.Worker",
                    *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1"),
                    *("--memory", "1g", "--work-dir", str(self.folder / f"work-{at}"), self.url),
                    ready="Successfully registered with master",
                )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, executors with their worker."""
        while self._processes:
            process, watchdog = self._processes.pop()
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            watchdog.watch(None)
            watchdog.close()

    def executors(self) -> list[Path]:
        """The folders of all executors that were started, each with `stderr`."""
        return sorted(path.parent for path in self.folder.glob("work-*/app-*/*/stderr"))

    def _start(self, name: str, main: str, *arguments: str, ready: str) -> None:
        log = self.folder / f"{name}.log"
        kept = {each: os.environ[each] for each in ("PATH", "JAVA_HOME") if each in os.environ}
        own = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        watchdog = Watchdog(f"chronos-spark-{name}-")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(SPARK_CLASS), main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**kept, **own, **self._environ},
                start_new_session=True,
            )
        watchdog.watch(process.pid)
        self._processes.append((process, watchdog))
        wait_until(lambda: ready in log.read_text(), lambda: log.read_text()[-3_000:], START_S)
