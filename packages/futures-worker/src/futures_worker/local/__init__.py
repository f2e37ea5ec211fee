"""Workers of this process's own, started and ended with it: `LocalCluster`. Above the client; the worker is another process."""
