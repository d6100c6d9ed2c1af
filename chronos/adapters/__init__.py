"""The adapters: implementations of `ports` on Kafka, RocksDB, ZooKeeper and the like.

In: settings as plain values. Out: objects of the ports, and errors of `chronos.errors`; an error of
a library is translated here and nowhere else. Nothing here decides about messages or roles, or
imports the configuration or the node."""
