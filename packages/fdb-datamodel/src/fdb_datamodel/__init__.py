"""The data model of durable distributed futures on FoundationDB: states, indices, transitions, invariants."""
