"""Election of a leader among a fixed list of nodes, after DLedger's rules. `elector.Elector` is the state machine."""
