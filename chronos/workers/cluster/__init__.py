"""The work of a node for its cluster: its membership (`membership`), probes of masters
(`observer`), the followers in sync (`in_sync`), and the steady members (`steadiness`).

In: the coordinator, and the state of this node's replicas. Out: their assignments, verdicts on
masters, and, on the controller, published roles. The decisions are in `core.cluster`."""
