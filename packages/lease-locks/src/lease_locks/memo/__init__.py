"""Runs that are never computed twice: the memoizing runner over leases."""
