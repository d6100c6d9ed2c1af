"""The coordinator on Kafka: members and a controller over the topic `chronos.cluster`.

In and out: `ports.Coordinator`, implemented by `coordinator.KafkaCoordinator`. The decisions are
those of `core.cluster.kafka.participant`; here are the threads (`loop`, `roles`), the topic
(`topic`), its consumer (`reader`) and its producers (`heartbeats`, `roles`), and the view of a
client that does not join (`inspection`)."""
