"""Kafka clients of several languages as producers, cancellers and readers: `scripts/clients`."""
