"""What people and programs are told of the state: lists, counts, causes, invariants. Nothing here writes; above `transitions`."""
