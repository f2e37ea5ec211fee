"""The worker's decisions: events in, instructions out. No I/O, no clock, no randomness; it speaks of no object of another room."""
