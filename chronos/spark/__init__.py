"""The Spark pipeline: archive the logs to Parquet, audit what was delivered, replay what was not.

Transformations are pure, DataFrame to DataFrame; Spark's own Kafka and Parquet connectors read and write.
"""
