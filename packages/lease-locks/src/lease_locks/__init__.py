"""Leases that need no clock, and runs that are never computed twice, on FoundationDB."""
