"""The Spark jobs: archive the logs to Parquet, audit the deliveries, send archived messages again.

    archive/    topics to Parquet, and compaction                 chronos archive
    audit/      the outcome of every message of a window          chronos audit
    backfill/   archived messages sent again                      chronos backfill

The modules of this folder serve several of them: the tables' schema and storage, the parsing of
records, the archive's runs and inventory, elections, the ledger and the request of backfills,
sessions and progress. Spark's own Kafka and Parquet connectors read the logs and write the tables,
except `offsets`; transformations take DataFrames and return DataFrames. A job asks the brokers and
sends records by the ports in `runs` and `backfill.sending`, which adapters implement."""
