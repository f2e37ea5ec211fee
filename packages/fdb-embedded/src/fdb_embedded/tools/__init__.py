"""What the command line does: status as text, dumps, checks, compaction. Imports everything below it."""
