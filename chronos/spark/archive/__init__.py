"""The archive: topics of the cluster to Parquet, and compaction of the files."""
