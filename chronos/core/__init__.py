"""The pure core of Chronos: values in, values out. No I/O, no clock, no randomness, no threads;
except that `cron` reads time zones from the package `tzdata` (`chronos.zones`)."""
