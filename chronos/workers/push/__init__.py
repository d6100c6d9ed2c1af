"""The push: from the messages that a step selected to the records of one transaction.

In: a selection, the descriptions of targets, limits and lanes. Out: deliveries, dead letters,
forwarded and rejected records, and the decisions of the progress record. Enter `push.Pusher`. It
writes nothing: `workers.replica.master` commits."""
