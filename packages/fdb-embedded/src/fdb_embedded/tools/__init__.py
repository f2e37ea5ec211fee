"""The command line, and what it does to databases that are closed: dumps, checks, repairs. Imports everything."""
