"""The verbs that run on Spark: archive, audit, backfill.

In: options. Out: jobs of `chronos.spark`, their progress on stderr, and reports. `app` declares the
verbs."""
