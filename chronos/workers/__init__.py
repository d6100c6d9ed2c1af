"""What runs: pull, push and delete, put together by the master's step and the follower's. Ports and core only."""
