"""The service `mainspring-scheduler`."""
