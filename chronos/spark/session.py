"""Spark sessions for the jobs, and the progress of a job as values.

The command line decides how progress is shown: jobs call a `Watch` from threads of the driver, when
a step begins and when its count grows. This module knows no table and no topic. Law: nothing of
Spark is imported before `need_spark` has found PySpark and Java."""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING
from zipfile import BadZipFile, ZipFile

from msgspec import Struct

from chronos.errors import ArchiveFailed, ChronosError, ConfigurationError, SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Step(Struct, frozen=True, kw_only=True):
    """One step of a job; two values with the same name are the same step."""

    name: str
    """What the job does, in the present participle: `archiving messages`."""
    done: int = 0
    """Units done so far."""
    total: int | None = None
    """Units there are; None: not counted."""
    unit: str = ""
    """What is counted: `offsets`, `messages`."""


Watch = Callable[[Step], None]
"""Called with the step a job is in."""


def ignore(_: Step) -> None:
    """A `Watch` that shows nothing."""


def running_tasks(spark: "SparkSession") -> tuple[int, int]:
    """Tasks that have ended, and all tasks, of the stages that Spark runs now; `(0, 0)` when it
    runs none."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    running = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in running), sum(
        stage.numTasks for stage in running
    )


if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession as SparkSession

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
"""Maven coordinates of Spark's Kafka connector. Several newer versions lack a dependency in
Maven."""

CONNECTOR_NAME = "spark-sql-kafka-0-10"
"""Part of the name of the connector's jar, and of its coordinates."""

CONNECTOR_CLASS = "org/apache/spark/sql/kafka010/KafkaSourceProvider.class"

DELTA = "io.delta:delta-spark_4.0_2.13:4.4.0"
"""Maven coordinates of Delta Lake, for this Spark's line. Without Spark's version in its name the
artifact is for another line."""

DELTA_NAME = "delta-spark"
"""Part of the name of Delta's jar, and of its coordinates."""

DELTA_CLASS = "io/delta/sql/DeltaSparkSessionExtension.class"

EXCLUDED = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-pool:*",
    "io.airlift:*",
    "io.delta:delta-kernel-unitycatalog",
    "io.unitycatalog:*",
    "javax.annotation:*",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.scala-lang:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
"""Dependencies of Delta that are not fetched: Spark has them, in versions of its own, and there is
no catalog."""

AUTO_MASTER = "auto"
"""The master named by `spark.master`, here or to spark-submit; without one, this machine."""

LOCAL_MASTER = "local[*]"
"""All cores of this machine."""

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
"""Settings for this machine.

Delta computes the state of a table, and lists its files for VACUUM, in as many tasks as the last
two say, which are 50 and 10,000 by default."""

CLUSTER = {
    "spark.databricks.delta.snapshotPartitions": "8",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
}
"""Settings for a cluster: with Delta's own, see `LOCAL`, each step of a small archive is 50 tasks,
and each VACUUM 10,000."""

EXACT = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.mergeSchema": "false",
    "spark.speculation": "false",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}
"""Settings that a job's result rests on: with others it could count a message that is there as
missing, or write what other readers take for something else. The last three let a job read every
version that a row of `offsets` names, whose files `archive.compact` keeps, and VACUUM add none."""

RESTS_ON = ("spark.sql.legacy.", "spark.databricks.delta.")
"""Beginnings of further such settings, which have none but Spark's and Delta's defaults here."""

TUNING = ("spark.databricks.delta.snapshotPartitions",)
"""Settings that begin so and decide nothing but how fast a job is."""

COMMON = {
    **EXACT,
    "spark.driver.extraJavaOptions": (
        f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.ui.explainMode": "simple",
}
"""Settings for this machine and for a cluster alike.

Without its native library Hadoop starts a `chmod` process for each file and folder it creates. The
raw file system writes no checksum files, which halves their number; Parquet's pages have checksums
of their own. A job on this machine and one on a cluster may write to the same folder: a checksum of
one would not fit a file that the other has replaced.

With debugging, each expression asks the JVM several times in order to note the line of Python that
made it: two thirds of all calls to the JVM, and a third of an audit of few messages (measured).
The default description of a plan, which Spark writes for each query whether its UI is on or not,
takes a tenth of the processor time of such an audit."""


PACKAGES = ("chronos", "confluent_kafka", "msgspec", "pandas", "pyarrow")
"""Packages that the tasks of jobs import, on the hosts of the executors."""

VANISHED = (
    "FileNotFoundException",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "PATH_NOT_FOUND",
    "NoSuchFileException",
)
"""Parts of Spark's errors about a file that was there when its folder was listed."""

LINE_CHARACTERS = 500
"""Most characters of Spark's message in the one line of an error."""


def need_spark() -> None:
    """Raise SparkMissing, which names what to install, if PySpark or Java is missing."""
    try:
        import delta  # noqa: F401
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkMissing(
            f"{error.name} is missing; install it with: pip install 'kafka-chronos[spark]'"
        ) from None
    java = (
        os.path.join(os.environ["JAVA_HOME"], "bin", "java")
        if os.environ.get("JAVA_HOME")
        else "java"
    )
    if shutil.which(java) is None:
        raise SparkMissing(
            f"{java} is missing: Spark needs Java 17 or newer. Install it (Debian, Ubuntu: apt "
            "install openjdk-17-jre-headless; macOS: brew install openjdk@17), or set JAVA_HOME "
            "to it"
        )


def open_session(  # type: ignore[no-untyped-def]
    name: str,
    master: str,
    conf: Mapping[str, str],
    log: IO[bytes] | None = None,
    *,
    kafka: bool = True,
):
    """The session of a job, with `conf` over the settings of this module; `AUTO_MASTER` chooses the
    master.

    Delta Lake, and with `kafka` the Kafka connector, are fetched, unless `spark.jars` names them;
    other jars and packages are kept. A Spark that spark-submit has started cannot fetch them any
    more. `log` takes the output of a JVM that is started here: Spark's log, what fetching the
    connector prints, and Java's own warnings. SparkMissing if PySpark, Java, Delta Lake or the
    connector is missing; on a cluster also if an executor lacks a package. ConfigurationError for
    `wrong_settings`."""
    need_spark()
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    master = conf.get("spark.master", "") if master == AUTO_MASTER else master
    if is_submitted() and not master:
        SparkContext._ensure_initialized()
        master = SparkConf().get("spark.master", "") or ""
    settings = session_settings(master or LOCAL_MASTER, conf, has_log=log is not None, kafka=kafka)
    spark_conf = SparkConf(loadDefaults=False)
    spark_conf.setAppName(f"chronos {name}")
    for key, value in settings.items():
        spark_conf.set(key, value)
    try:
        if log is not None and not is_submitted():
            _start_jvm(spark_conf, log)
        session = SparkSession.builder.config(conf=spark_conf).getOrCreate()
    except (PySparkRuntimeError, OSError) as error:
        raise SparkMissing(
            f"Spark did not start ({error}); the reason is in the output of Java. If the "
            f"connector could not be fetched, provide {CONNECTOR} and its dependencies: --conf "
            "spark.jars=<files, separated by commas>"
        ) from error
    session.sparkContext.setLogLevel(settings["spark.log.level"])
    _silence()
    _check_settings(session, conf)
    _need_delta(session)
    if kafka:
        _need_connector(session)
    if not settings["spark.master"].startswith("local"):
        _need_packages(session)
    return session


def _check_settings(session: "SparkSession", conf: Mapping[str, str]) -> None:
    """Raise ConfigurationError if `wrong_settings` finds any. `conf`: the settings of the command
    line."""
    found = {**dict(session.sparkContext.getConf().getAll()), **conf}
    found |= {key: session.conf.get(key, "") or "" for key in EXACT}
    wrong = wrong_settings(found, conf)
    if wrong:
        session.stop()
        raise ConfigurationError(wrong)


def wrong_settings(found: Mapping[str, str], conf: Mapping[str, str]) -> list[str]:
    """One line for each setting of a session that the result of a job rests on and is not the job's
    own, with its value and its origin. `conf`: the settings of the command line."""
    wrong = [key for key, own in EXACT.items() if found.get(key, "").casefold() != own.casefold()]
    wrong += [
        key for key in found if key.startswith(RESTS_ON) and key not in EXACT and key not in TUNING
    ]
    return [
        f"{key} is {found.get(key)}, by "
        f"{'--conf' if key in conf else 'spark-defaults.conf, spark-submit or the cluster'}, and "
        f"what the archive proves rests on {EXACT.get(key, 'its default')}: remove the setting"
        for key in sorted(wrong)
    ]


def _silence() -> None:
    """Keep py4j and PySpark from writing the error of a failed task or of a JVM that ended, which
    the driver raises too.

    They would write some fifty lines for each request.
    """
    from pyspark.accumulators import AccumulatorServer

    for logger in ("py4j", "py4j.clientserver", "py4j.java_gateway"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4j)  # py4j logs some errors to the root logger
    AccumulatorServer.handle_error = lambda *_: None


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return not record.pathname.replace("\\", "/").rpartition("/")[0].endswith("/py4j")


def is_submitted() -> bool:
    """True if spark-submit started this process: its JVM runs already and writes where spark-submit
    writes."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def session_settings(
    master: str, conf: Mapping[str, str], *, has_log: bool, kafka: bool
) -> dict[str, str]:
    """All settings of a session; sets the environment that a local Spark needs."""
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    level = {"spark.log.level": "WARN" if has_log else "ERROR"}
    settings = {
        **COMMON,
        **level,
        **(LOCAL if is_local else CLUSTER),
        **conf,
        "spark.master": master,
    }
    packages = [
        package for package in settings.get("spark.jars.packages", "").split(",") if package
    ]
    named = [*settings.get("spark.jars", "").split(","), *packages]
    if not is_submitted():
        if kafka and not any(_is_jar(jar, CONNECTOR_NAME, CONNECTOR_CLASS) for jar in named):
            packages.append(CONNECTOR)
        if not any(_is_jar(jar, DELTA_NAME, DELTA_CLASS) for jar in named):
            packages.append(DELTA)
            excluded = settings.get("spark.jars.excludes", "").split(",")
            settings["spark.jars.excludes"] = ",".join(filter(None, [*excluded, *EXCLUDED]))
        if packages:
            settings["spark.jars.packages"] = ",".join(packages)
    return settings


def one_line(error: Exception) -> ChronosError | None:
    """The error of Spark or its JVM as one line with what to do; None for an error of something
    else."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception)
    elif isinstance(error, PySparkException):
        text = str(error)
    elif isinstance(error, (Py4JError, ConnectionError)):
        return ArchiveFailed(
            "Spark's JVM ended before the job did: it was killed, or had too little memory "
            "(--conf spark.driver.memory=4g); run the same command again"
        )
    else:
        return None
    if any(name in text for name in VANISHED):
        return ArchiveFailed(
            "a file of the archive is missing: it was lost, or removed by VACUUM while it was "
            "read. Run the same command again; `chronos archive verify` names lost files"
        )
    line = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return ArchiveFailed(f"Spark failed: {line[:LINE_CHARACTERS]}")


def _is_jar(jar: str, name: str, content: str) -> bool:
    """True for a library's jar or coordinates, or a jar that contains its class with others."""
    if name in jar:
        return True
    with suppress(OSError, BadZipFile), ZipFile(jar.removeprefix("file:")) as classes:
        return content in classes.namelist()
    return False


def _start_jvm(conf: "SparkConf", log: IO[bytes]) -> None:
    """Start the JVM that the session will use, with its output in a file instead of on the
    terminal."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        SparkContext._ensure_initialized(
            gateway=launch_gateway(conf, {"stdout": log, "stderr": log}), conf=conf
        )


def _need_connector(session) -> None:  # type: ignore[no-untyped-def]
    """Raise SparkMissing unless Spark has the Kafka connector; connects to no broker."""
    from pyspark.errors import AnalysisException

    try:
        session.read.format("kafka").options(
            **{"kafka.bootstrap.servers": "-:1", "subscribe": "-"}
        ).load()
    except AnalysisException as error:
        session.stop()
        raise SparkMissing(
            f"Spark has no Kafka connector: provide {CONNECTOR} and its dependencies with --conf "
            f"spark.jars=<files, separated by commas>, or with spark-submit --packages {CONNECTOR}"
        ) from error


def _need_packages(session: "SparkSession") -> None:
    """Raise SparkMissing unless Spark's executors have this Python and the packages of the jobs."""
    from py4j.protocol import Py4JJavaError

    wanted = PACKAGES

    def look(_: object) -> tuple[str, str, list[str]]:
        # Defined here, so that an executor without Chronos can call it.
        import importlib.util
        import socket
        import sys

        lacking = [name for name in wanted if importlib.util.find_spec(name) is None]
        return socket.gethostname(), sys.executable, lacking

    context = session.sparkContext
    tasks = context.defaultParallelism
    remedy = (
        "each host that runs tasks needs the same Python as this one "
        f"({sys.version_info.major}.{sys.version_info.minor}) with kafka-chronos[spark]; set "
        "PYSPARK_PYTHON to its path there"
    )
    try:
        found = context.parallelize(range(tasks), tasks).map(look).collect()
    except Py4JJavaError as error:
        session.stop()
        text = str(error.java_exception)
        raised = [line for line in text.splitlines() if "Error: " in line or "[PYTHON_" in line]
        why = (raised[-1:] or text.splitlines()[:1] or [type(error).__name__])[0].strip()
        why = why[:LINE_CHARACTERS]
        raise SparkMissing(f"Spark's executors cannot run Python ({why}): {remedy}") from error
    for host, python, lacking in found:
        if lacking:
            session.stop()
            raise SparkMissing(f"{python} on {host} has no {', '.join(lacking)}: {remedy}")


def _need_delta(session: "SparkSession") -> None:
    """Raise SparkMissing unless Spark has Delta Lake."""
    from pyspark.errors import AnalysisException

    try:
        session.read.format("delta").load("/-")
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_NOT_FOUND":
            return
        session.stop()
        raise SparkMissing(
            f"Spark has no Delta Lake: provide {DELTA} and its dependencies with --conf "
            f"spark.jars=<files, separated by commas>, or with spark-submit --packages {DELTA}"
        ) from error
