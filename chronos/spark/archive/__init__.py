"""The archive: topics of the cluster written to Parquet (`job`), without the batches that Spark
cannot read (`unreadable`), and the compaction of small files (`compact`)."""
