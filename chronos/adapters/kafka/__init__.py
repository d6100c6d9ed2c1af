"""Kafka, through confluent-kafka (librdkafka): the log, and the coordinator over a topic of its
own.

In and out: `ports.Log`, entered by `log.KafkaLog`, and `ports.Coordinator`, entered by
`cluster.coordinator.KafkaCoordinator`. Every error of the client becomes one of `chronos.errors`;
the meaning of each code, and each setting with its measured reason, is in `connection`."""
