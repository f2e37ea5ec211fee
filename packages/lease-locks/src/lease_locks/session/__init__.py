"""What keeps a process's leases alive, and ends its belief in them in time."""
