"""The whole system in one thread: its own code, with time, threads, processes and the network drawn from a seed."""
