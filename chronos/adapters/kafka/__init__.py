"""Kafka, through confluent-kafka (librdkafka): the log, and the coordinator over a topic of its
own.

Enter `log.KafkaLog` (`ports.Log`), `appender.KafkaAppender`, `cluster.coordinator.KafkaCoordinator`
(`ports.Coordinator`), `cluster.inspection`, or `writer.BulkOpener`. Every error of the client
becomes one of `chronos.errors`. Most settings and error codes are in `connection`; some that only
one module needs are in that module."""
