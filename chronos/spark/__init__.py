"""The Spark jobs: archive the logs to Delta tables, audit the deliveries, send archived messages
again.

    archive/    topics to tables, their commits, compaction and verification    chronos archive
    audit/      the outcome of every message of a window                        chronos audit
    backfill/   archived messages sent again                                    chronos backfill

The modules of this folder serve several of them: the tables' schema, Delta and storage, the parsing
of records, the archive's runs, elections, the ledger and the request of backfills, sessions and
progress. Spark's Kafka connector reads the logs and Delta Lake writes the tables; transformations
take DataFrames and return DataFrames. A job asks the brokers and sends records by the ports in
`runs` and `backfill.sending`, which adapters implement."""
