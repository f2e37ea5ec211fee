"""What the processes of a database share by memory and locks, and how they wait for each other. Imports `pure`."""
