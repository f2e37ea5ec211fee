"""Keyspace, msgpack records, clock, errors and engine protocols shared by Mainspring's packages on FoundationDB."""
