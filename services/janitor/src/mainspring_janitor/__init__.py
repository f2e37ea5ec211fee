"""The service `mainspring-janitor`."""
