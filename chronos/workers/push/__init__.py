"""The push: from the messages that a step selected, and the records that it refused, to the records
of one transaction; and which messages of open lanes a step selects (`lanes`).

In: a selection, rejected and forwarded records, limits and lanes, and the descriptions of targets,
which are requested from the brokers here (`targets`). Out: the records of deliveries, dead letters,
rejections and forwards, and the decisions of the progress record. Enter `push.Pusher`. It commits
nothing: `workers.replica.master` writes and commits what it makes. A missing target topic is
created here, where that is allowed."""
