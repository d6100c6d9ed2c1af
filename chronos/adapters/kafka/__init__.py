"""Kafka, through confluent-kafka (librdkafka): the log, and the coordinator over a topic of its
own.

Enter `log.KafkaLog` (`ports.Log`), `appender.KafkaAppender`, `cluster.coordinator.KafkaCoordinator`
(`ports.Coordinator`), `cluster.inspection`, or `writer.BulkOpener`. Every error of the client
becomes one of `chronos.errors`. The settings and error codes that several modules share are in
`connection`, with their reasons; those of one module are in that module."""
