"""The files of a database: the map, the journal beside it, checkpoints, who reads. Imports `sharing` and `pure`."""
