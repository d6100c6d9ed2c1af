"""A Spark session that reads Kafka, on this machine or on a cluster."""

import logging
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from chronos.errors import SparkMissing

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
"""Spark's Kafka connector, as Maven names it. Of several newer versions a dependency is missing from Maven."""

AUTO_MASTER = "auto"
"""That of `spark.master`, be it given here or to spark-submit, or else this machine."""

LOCAL_MASTER = "local[*]"
"""All cores of this machine."""

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
"""Settings on this machine; on a cluster its own hold.

Without its native library Hadoop starts a `chmod` for each file and folder it makes. So none are made for checksums,
which Parquet's pages have anyway.
"""

COMMON = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "false",
}


def need_spark() -> None:
    """SparkMissing, saying what to install, when PySpark or Java is not there."""
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkMissing(f"{error.name} is missing; install it with: pip install 'kafka-chronos[spark]'") from None
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    if shutil.which(java) is None:
        raise SparkMissing(
            f"{java} is missing: Spark needs Java 17 or newer. Install it (Debian, Ubuntu: apt install"
            " openjdk-17-jre-headless; macOS: brew install openjdk@17), or set JAVA_HOME to it"
        )


def open_session(name: str, master: str, conf: Mapping[str, str]):  # type: ignore[no-untyped-def]
    """The session of a job: `conf` over what Chronos sets. See `AUTO_MASTER` for a master of that name.

    Fetches the connector unless `spark.jars` brings it, or says with nothing in it that none is needed. Of a Spark
    that spark-submit has started it is too late to ask that. SparkMissing when PySpark, Java or the connector is not
    there.
    """
    need_spark()
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    master = conf.get("spark.master", "") if master == AUTO_MASTER else master
    if submitted and not master:
        SparkContext._ensure_initialized()
        master = SparkConf().get("spark.master", "") or ""
    master = master or LOCAL_MASTER
    local = master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**COMMON, **(LOCAL if local else {}), **conf, "spark.master": master}
    needs_connector = settings.get("spark.jars") != ""
    if submitted and not needs_connector:
        del settings["spark.jars"]  # what spark-submit brings is needed elsewhere
    if not submitted and "spark.jars" not in settings:
        packages = [package for package in settings.get("spark.jars.packages", "").split(",") if package]
        settings["spark.jars.packages"] = ",".join([*packages, CONNECTOR])
    builder = SparkSession.builder.appName(f"chronos {name}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except (PySparkRuntimeError, OSError) as error:
        raise SparkMissing(
            f"Spark did not start ({error}); what Java said is above. If the connector could not be fetched, bring"
            f" {CONNECTOR} and what it needs yourself: --conf spark.jars=<files, separated by commas>"
        ) from error
    session.sparkContext.setLogLevel(settings["spark.log.level"])
    # A task that fails is raised as well: what py4j logs of it is the same, on fifty lines.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    if needs_connector:
        _need_connector(session)
    return session


def _need_connector(session) -> None:  # type: ignore[no-untyped-def]
    """SparkMissing unless Spark knows Kafka; no broker is asked."""
    from pyspark.errors import AnalysisException

    try:
        session.read.format("kafka").options(**{"kafka.bootstrap.servers": "-:1", "subscribe": "-"}).load()
    except AnalysisException as error:
        session.stop()
        raise SparkMissing(
            f"Spark has no Kafka connector: bring {CONNECTOR} and what it needs with"
            f" --conf spark.jars=<files, separated by commas>, or with spark-submit --packages {CONNECTOR}"
        ) from error
