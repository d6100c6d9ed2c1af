"""The embedded log: a log inside the process, on a RocksDB with a write-ahead log.

In and out: `ports.Log`. Enter `log.EmbeddedLog`. It serves one process; a record that was
acknowledged survives a crash, and there are no replicas."""
