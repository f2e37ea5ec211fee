"""The service `mainspring-tender`."""
