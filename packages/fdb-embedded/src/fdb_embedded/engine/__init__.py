"""One database as a process has it open: snapshots, commits, watches, futures. Imports `storage` and what is below it."""
