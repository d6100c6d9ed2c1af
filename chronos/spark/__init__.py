"""The Spark jobs: archive the logs to Parquet, audit the deliveries, send lost messages again.

    archive/    topics to Parquet, and compaction                 chronos archive
    audit/      the outcome of every message of a window          chronos audit
    backfill/   archived messages sent again                      chronos backfill

The modules of this folder serve all three: the tables' schema, their storage, the archive's runs,
the ledger of backfills, sessions and progress. Spark's own Kafka and Parquet connectors read the
logs and write the tables; transformations are pure, DataFrame to DataFrame."""
