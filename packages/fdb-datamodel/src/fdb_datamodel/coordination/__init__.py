"""What processes share by a name: queues, and who waits for them."""
