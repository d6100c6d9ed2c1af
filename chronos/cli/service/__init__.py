"""The verbs about a service: serve, status, doctor, registry, failover, rates.

In: options and the configuration. Out: a node that runs, or what people read about one. `app`
declares the verbs."""
