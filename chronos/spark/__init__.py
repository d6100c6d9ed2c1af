"""The Spark jobs: archive the logs to Parquet, audit the deliveries, replay lost messages.

    archive/    topics to Parquet, and compaction                 chronos archive
    audit/      the outcome of every message of a window          chronos audit
    backfill/   archived messages sent again                      chronos backfill

The modules of this folder serve all three: the tables' schema, their storage, the archive's runs,
the ledger of backfills, sessions and progress. Transformations are pure, DataFrame to DataFrame;
Spark's own Kafka and Parquet connectors read and write."""
