"""The archive: topics of the cluster written to Parquet, and compaction of the files."""
