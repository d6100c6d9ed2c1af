"""Sessions: the master of a job, its log file, and the error if Spark lacks something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

OPEN = """
import sys
from chronos.errors import SparkMissing
from chronos.spark.session import open_session
log = open("spark.log", "ab")
try:
    print("master", open_session("test", "auto", {sys.argv[1]: sys.argv[2]}, log).sparkContext.master)
except SparkMissing as error:
    print(error)
"""


def opened(tmp_path: Path, launcher: list[str], key: str, value: str) -> tuple[str, str]:
    """Output and errors of the script."""
    script = tmp_path / "job.py"
    script.write_text(OPEN)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run([*launcher, str(script), key, value], capture_output=True, text=True, timeout=170,
                          env=environment, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_the_master_of_spark_submit_is_the_default(tmp_path: Path) -> None:
    """Its jars are kept too: an empty `spark.jars` only means that the job needs no connector."""
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    output, _ = opened(tmp_path, [submit, "--master", "local[3]"], "spark.jars", "")
    assert "master local[3]\n" in output


def test_a_missing_connector_is_named_and_java_writes_to_the_log(tmp_path: Path) -> None:
    """Before anything is read, with the ways to bring it. The default master without spark-submit is this machine."""
    (tmp_path / "no.jar").write_bytes(b"PK\x05\x06" + bytes(18))
    output, errors = opened(tmp_path, [sys.executable], "spark.jars", str(tmp_path / "no.jar"))
    assert "Spark has no Kafka connector: provide org.apache.spark:spark-sql-kafka" in output
    assert "spark-submit --packages org.apache.spark:spark-sql-kafka" in output
    assert errors == ""
    assert "WARN" in (tmp_path / "spark.log").read_text()
