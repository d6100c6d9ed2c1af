"""Which Spark a job gets, and what is said when it lacks something."""

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
try:
    print("master", open_session("test", "auto", {sys.argv[1]: sys.argv[2]}).sparkContext.master)
except SparkMissing as error:
    print(error)
"""


def opened(tmp_path: Path, launcher: list[str], key: str, value: str) -> str:
    """What the script says."""
    script = tmp_path / "job.py"
    script.write_text(OPEN)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run([*launcher, str(script), key, value], capture_output=True, text=True, timeout=170,
                          env=environment, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_without_a_master_that_of_spark_submit_is_kept(tmp_path: Path) -> None:
    """And its jars: an empty `spark.jars` only says that none of ours is needed."""
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    assert "master local[3]\n" in opened(tmp_path, [submit, "--master", "local[3]"], "spark.jars", "")


def test_a_connector_that_is_missing_is_named(tmp_path: Path) -> None:
    """Before anything is read, and with what brings it. Without a master and spark-submit it is this machine."""
    (tmp_path / "no.jar").write_bytes(b"PK\x05\x06" + bytes(18))
    said = opened(tmp_path, [sys.executable], "spark.jars", str(tmp_path / "no.jar"))
    assert "Spark has no Kafka connector: bring org.apache.spark:spark-sql-kafka" in said
    assert "spark-submit --packages org.apache.spark:spark-sql-kafka" in said
