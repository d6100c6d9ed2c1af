"""Kafka, through confluent-kafka (librdkafka): the log, and the coordinator over a topic of its
own.

Enter `log.KafkaLog` (`ports.Log`), `appender.KafkaAppender`, `cluster.coordinator.KafkaCoordinator`
(`ports.Coordinator`), `cluster.inspection`, or `writer.BulkOpener`; `closing.consumers` counts the
consumers that did not close. An error of a client becomes one of `chronos.errors`; but making a
client may raise KafkaException, as for an unknown property. Most settings and error codes are
in `connection`; the others are in the modules that need them."""
