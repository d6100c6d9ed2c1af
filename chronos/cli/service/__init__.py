"""The verbs about a service: serve, status, top, whoami, doctor, registry, failover and rates.

In: options and the configuration. Out: a running node, or tables and JSON about one."""
