"""The work of a node for its cluster: its membership (`membership`), probes of masters
(`observer`), the followers in sync (`in_sync`), and the steady members (`steadiness`).

In: the coordinator, the log, and the state of this node's replicas. Out: their reports and
assignments, probes, verdicts on masters, the followers in sync, and, on the controller, published
roles. The decisions are in `core.cluster`."""
