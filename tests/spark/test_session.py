"""Sessions: the master of a job, its log file, and the error if Spark lacks something."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException, SparkRuntimeException

from chronos.errors import ArchiveFailed
from chronos.spark.session import (
    CONNECTOR,
    DELTA,
    EXACT,
    one_line,
    session_settings,
    wrong_settings,
)
from tests.spark.conftest import conf, connector, small

pytestmark = pytest.mark.spark

JARS = connector()["spark.jars"].split(",")

OPEN = """
import sys
from chronos.errors import SparkMissing
from chronos.spark.session import open_session

log = open("spark.log", "ab")
try:
    kafka = sys.argv[1] != "none"
    conf = {"spark.jars": sys.argv[2]} if kafka else {}
    print("master", open_session("test", "auto", conf, log, kafka=kafka).sparkContext.master)
except SparkMissing as error:
    print(error)
"""


def opened(tmp_path: Path, launcher: list[str], jars: str) -> tuple[str, str]:
    """Output and errors of the script; `jars`: none for a job without Kafka."""
    script = tmp_path / "job.py"
    script.write_text(OPEN)
    root = str(Path(__file__).parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": root,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [*launcher, str(script), "none" if jars == "none" else "jars", jars],
        capture_output=True,
        text=True,
        timeout=170,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_the_master_of_spark_submit_is_the_default(tmp_path: Path) -> None:
    """A job that reads no Kafka needs no connector."""
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    jars = ",".join(jar for jar in JARS if "delta" in jar)
    output, _ = opened(tmp_path, [submit, "--master", "local[3]", "--jars", jars], "none")
    assert "master local[3]\n" in output


def test_a_missing_connector_is_named_and_java_writes_to_the_log(tmp_path: Path) -> None:
    """Before anything is read, with the ways to bring it. The default master without spark-submit
    is this machine."""
    jar = tmp_path / "spark-sql-kafka-0-10_2.13-empty.jar"
    jar.write_bytes(b"PK\x05\x06" + bytes(18))
    delta = [each for each in JARS if "delta" in each]
    output, errors = opened(tmp_path, [sys.executable], ",".join([str(jar), *delta]))
    assert "Spark has no Kafka connector: provide org.apache.spark:spark-sql-kafka" in output
    assert "spark-submit --packages org.apache.spark:spark-sql-kafka" in output
    assert errors == ""
    assert "WARN" in (tmp_path / "spark.log").read_text()


@pytest.mark.parametrize(
    ("conf", "kafka", "expected"),
    [
        ({}, True, (None, f"{CONNECTOR},{DELTA}")),
        ({}, False, (None, DELTA)),
        ({"spark.jars": "/own.jar"}, True, ("/own.jar", f"{CONNECTOR},{DELTA}")),
        ({"spark.jars": "/own.jar"}, False, ("/own.jar", DELTA)),
        ({"spark.jars.packages": "a:b:1"}, True, (None, f"a:b:1,{CONNECTOR},{DELTA}")),
        (
            {"spark.jars": "/own.jar,/x/spark-sql-kafka-0-10_2.13-4.0.0.jar"},
            True,
            ("/own.jar,/x/spark-sql-kafka-0-10_2.13-4.0.0.jar", DELTA),
        ),
        (
            {"spark.jars": "/x/spark-sql-kafka-0-10_2.13-4.0.0.jar,/x/delta-spark_4.0.jar"},
            True,
            ("/x/spark-sql-kafka-0-10_2.13-4.0.0.jar,/x/delta-spark_4.0.jar", None),
        ),
    ],
)
def test_the_jars_of_kafka_and_delta_are_added_to_the_user_s_own(
    conf: dict[str, str], kafka: bool, expected: tuple[str | None, str | None]
) -> None:
    """Unless they have them; the connector not for a job that reads no Kafka."""
    found = session_settings("local[2]", conf, has_log=True, kafka=kafka)
    assert (found.get("spark.jars"), found.get("spark.jars.packages")) == expected


def test_the_jars_of_the_tests_are_those_that_are_fetched() -> None:
    """The connector and Delta, whose Python package has the same version."""
    jars = {Path(jar).name for jar in JARS}
    for coordinates in (CONNECTOR, DELTA):
        _, artifact, version = coordinates.split(":")
        assert f"{artifact}-{version}.jar" in jars
    assert metadata.version("delta-spark") == DELTA.rpartition(":")[2]


def test_a_jar_of_the_user_s_own_may_contain_the_connector(tmp_path: Path) -> None:
    """And Delta: then nothing is fetched, whatever its name."""
    with ZipFile(tmp_path / "all.jar", "w") as jar:
        jar.writestr("org/apache/spark/sql/kafka010/KafkaSourceProvider.class", b"")
        jar.writestr("io/delta/sql/DeltaSparkSessionExtension.class", b"")
    conf = {"spark.jars": str(tmp_path / "all.jar")}
    assert "spark.jars.packages" not in session_settings("local[2]", conf, has_log=True, kafka=True)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Py4JNetworkError("An error occurred"), "Spark's JVM ended before the job did"),
        (ConnectionRefusedError(111, "Connection refused"), "Spark's JVM ended before the job did"),
        (
            AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/a"),
            ("a file of the archive is missing"),
        ),
        (
            SparkRuntimeException("java.io.FileNotFoundException: File file:/a\n\tat java"),
            ("a file of the archive is missing"),
        ),
        (SparkRuntimeException("first line\n\tat org.apache"), "Spark failed: first line"),
    ],
)
def test_an_error_of_spark_is_one_line(error: Exception, text: str) -> None:
    """With what to do; other errors stay as they are."""
    found = one_line(error)
    assert isinstance(found, ArchiveFailed)
    assert str(found).startswith(text)
    assert "\n" not in str(found)
    assert one_line(ValueError("x")) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.session.timeZone", "America/New_York"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.files.ignoreMissingFiles", "true"),
        ("spark.sql.files.ignoreCorruptFiles", "true"),
        ("spark.sql.mapKeyDedupPolicy", "LAST_WIN"),
        ("spark.sql.sources.partitionColumnTypeInference.enabled", "true"),
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY"),
        ("spark.sql.parquet.outputTimestampType", "INT96"),
        ("spark.speculation", "true"),
        ("spark.sql.legacy.timeParserPolicy", "LEGACY"),
        ("spark.databricks.delta.properties.defaults.columnMapping.mode", "name"),
        ("spark.databricks.delta.stalenessLimit", "1h"),
    ],
)
def test_a_setting_that_results_rest_on_is_named_with_its_origin(key: str, value: str) -> None:
    """Wherever it comes from; all others pass."""
    own = {**EXACT, "spark.jars": "/own.jar", "spark.databricks.delta.snapshotPartitions": "8"}
    assert wrong_settings(own, {"spark.jars": "/own.jar"}) == []
    (line,) = wrong_settings({**own, key: value}, {key: value})
    assert line.startswith(f"{key} is {value}, by --conf, and ")
    (line,) = wrong_settings({**own, key: value}, {})
    assert line.startswith(f"{key} is {value}, by spark-defaults.conf, spark-submit or the cluster")


def test_a_job_with_such_a_setting_ends_before_it_reads(tmp_path: Path) -> None:
    """Exit code 2: an audit with another time zone could prove what is not so."""
    zone = {**small(), "spark.sql.session.timeZone": "America/New_York"}
    command = [sys.executable, "-m", "chronos", "audit", "--location", str(tmp_path), *conf(zone)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "spark.sql.session.timeZone is America/New_York, by --conf, and" in ended.stderr
