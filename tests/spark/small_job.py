"""A small Spark job like those of the tests, for the archive of the classes that it loads
(tests/harness/java.py).

    python tests/spark/small_job.py SETTINGS DIRECTORY

SETTINGS are Spark's, as JSON. The JVM has ended when the program ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import Window
from pyspark.sql import functions as f

sys.path.insert(0, str(Path(__file__).parents[2]))

from chronos.spark.session import open_session

settings, directory = json.loads(sys.argv[1]), sys.argv[2]
spark = open_session("classes", "local[2]", settings)
rows = spark.createDataFrame(
    [(number, b"value", [("name", b"header")]) for number in range(100)],
    "a long, b binary, c array<struct<k string, v binary>>",
)
rows.withColumn("p", f.col("a") % 2).write.partitionBy("p").parquet(f"{directory}/rows")
found = spark.read.parquet(f"{directory}/rows")
ranked = found.withColumn("n", f.row_number().over(Window.partitionBy("p").orderBy("a")))
joined = (
    ranked.join(rows.select("a", f.explode("c").alias("one")), "a")
    .groupBy("p")
    .agg(f.count("*"), f.max("one.k"))
)
joined.orderBy("p").collect()
found.mapInPandas(lambda frames: frames, found.schema).toPandas()
spark.stop()
jvm = SparkContext._gateway.proc
jvm.stdin.close()
jvm.wait(200)
