"""The adapters: implementations of `ports` on Kafka, in the process (the embedded log), on RocksDB,
ZooKeeper and voters, on files and object storage, on OpenTelemetry, and on the machine's clock.

In: settings as plain values. Out: objects of the ports, and errors of `chronos.errors`: the errors
of the libraries behind the ports are translated here and nowhere else. Nothing here decides about
messages or roles, or imports the configuration or the node."""
