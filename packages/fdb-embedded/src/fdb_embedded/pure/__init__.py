"""Computing on bytes and on open transactions of LMDB, without files and clocks: keys, overlays, conflicts, the client's reads. Imports `errors` alone."""
