"""Faults on a real cluster: real processes on a real Kafka and a real ZooKeeper, under load,
watched from outside."""
