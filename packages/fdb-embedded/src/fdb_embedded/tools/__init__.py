"""The command line, and what it does: status, dumps, checks, compaction. Imports everything."""
