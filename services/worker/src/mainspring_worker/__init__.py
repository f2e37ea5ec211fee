"""The service `mainspring-worker`."""
