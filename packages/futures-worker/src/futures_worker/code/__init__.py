"""Code that travels: which functions and modules go by value, and when what was sent is no longer what it was."""
