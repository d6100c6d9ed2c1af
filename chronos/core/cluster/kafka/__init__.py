"""The coordinator on Kafka, without I/O: members and the controller, decided by each process from
the records of the topic `chronos.cluster`.

In: records of its two partitions, and times of a monotonic clock. Out: records to write, the
members, and what the process has to do to become the controller. Enter `participant.Participant`;
`adapters.kafka.cluster` reads and writes the records."""
