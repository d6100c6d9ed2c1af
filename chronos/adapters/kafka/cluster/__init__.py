"""The coordinator on Kafka: members and a controller over the topic `chronos.cluster`.

In and out: `ports.Coordinator`, entered by `coordinator.KafkaCoordinator`. The decisions are those
of `core.cluster.kafka.participant`; here are the threads (`loop`, `roles`), the consumer (`reader`)
and the producers (`heartbeats`, `roles`)."""
