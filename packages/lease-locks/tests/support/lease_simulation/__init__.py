"""A deterministic world in which the real transitions, observers and fencing deadlines run under every kind of trouble."""
