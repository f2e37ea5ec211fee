"""What processes share by a name: queues, semaphores and events, and who waits for them."""
