"""What processes share by a name in the database: queues, events, semaphores."""
