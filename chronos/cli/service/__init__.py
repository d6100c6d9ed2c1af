"""The verbs about a service: serve, status, top, whoami, doctor, registry, failover and rates;
`transfer` and `forget` are in `messages.verbs`.

In: options and the configuration. Out: a running node, or changes of a service and tables or JSON
about it."""
