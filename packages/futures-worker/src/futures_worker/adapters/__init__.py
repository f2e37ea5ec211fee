"""Doors for other libraries, a module each: it imports the library, and nothing of `futures_worker` imports it (`doors` loads it by name)."""
