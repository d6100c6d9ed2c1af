"""The pure core of Chronos: values in, values out. No I/O, no clock, no randomness, no threads;
except that `cron` reads time zones from the package `tzdata` (`chronos.zones`), and that shards and
queries read the store through a view that they are given (`shard.step.StoreView`)."""
