"""The same load for Chronos and for other services of delayed messages: `scripts/bench --peers`."""
