"""The coordinator without another system: voters in the nodes themselves, over HTTP."""
