"""The watches beside the shards: whether a replica stands still (`stall`), the log answers
(`reachability`), Chronos's topics have changed (`topics`), or a transaction stays open
(`transactions`).

In: the state of replicas, and answers of the brokers, at intervals. Out: reasons for people in
`/readyz`, `chronos status` and the log, the verdict on the log for the cluster, the creation of a
missing rejected or dead-letter topic, and an error that ends the process if the topics are no
longer the same or are set up wrongly. No decision about a message depends on them."""
