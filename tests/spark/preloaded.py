"""PySpark's daemon, which forks the Python workers of a session, with what they would import and
collect each for itself: Spark runs it by `spark.python.daemon.module`."""

import gc

import pandas  # noqa: F401
import pyarrow  # noqa: F401
from pyspark import daemon

import chronos.spark.archive.job
import chronos.spark.backfill.sending  # noqa: F401

# A worker collects garbage after each task, which would look through all of this.
gc.freeze()
daemon.manager()
