"""The verbs about the archive: archive (with compact, verify, expire, forget and find), audit and
backfill. All run on Spark.

`app` declares them; `archive`, `erase`, `audit` and `backfill` execute them by the functions of
`chronos.spark`; `jobs` opens the Spark session and shows the progress on stderr. Results go to
stdout."""
