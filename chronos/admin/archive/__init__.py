"""The metrics and the readiness of `chronos archive --follow`, as values and over HTTP. It knows no
node and no Spark: the command line tells it what each run did."""
