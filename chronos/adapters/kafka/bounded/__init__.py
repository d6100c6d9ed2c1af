"""Reading a partition within a bound of memory, after a process that read it ended, perhaps for
want of memory.

librdkafka refuses a large batch in zstd, but takes the memory for one in gzip, lz4 or snappy, and
aborts the process if it gets none; also for a batch that it only fetches ahead. So a child process
reads (`child`), and its parent decides from the way it ends (`reader`). The readers of a process
take turns (`turns`). A bounded reader is slower than a plain one.

In: a log, a partition, an offset and the end of the stretch. Out: records, or BatchUnreadable with
its reason. Enter `reader.BoundedReader`, or `alone.AloneReader` for one batch beyond the bound."""
