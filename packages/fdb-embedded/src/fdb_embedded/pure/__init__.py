"""Computing without I/O, clocks or threads: keys and rows, overlays, what the client sees of its own writes, conflicts, versions. Imports `errors` alone."""
