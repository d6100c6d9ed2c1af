"""The coordinator in the nodes themselves: voters that elect a leader and replicate a register,
over HTTP.

In and out: `ports.Coordinator`, entered by `coordinator.RaftCoordinator`. The rules of the election
and of the register are `core.cluster.raft`; here are threads, sockets, files and signatures."""
