"""The workers of a shard, and the replica that steps them as master or follower. They use the ports
and the core only."""
