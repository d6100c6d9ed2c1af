"""The push: from the messages that a step selected, and the records that it refused, to the records
of one transaction.

In: a selection, rejected and forwarded records, the descriptions of targets, limits and lanes. Out:
the records of deliveries, dead letters, rejections and forwards, and the decisions of the progress
record. Enter `push.Pusher`. It commits nothing: `workers.replica.master` writes and commits what it
makes. A missing target topic is created here, where that is allowed."""
