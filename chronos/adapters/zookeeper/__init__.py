"""The coordinator on ZooKeeper, over kazoo.

In and out: `ports.Coordinator`, implemented by `coordinator.ZooKeeperCoordinator`. `servers` says
how to connect, `session` is one session, and `inspection` looks at a cluster without joining it."""
