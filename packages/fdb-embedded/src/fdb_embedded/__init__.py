"""FoundationDB's Python API on one machine, with nothing to install: an embedded engine over LMDB."""
