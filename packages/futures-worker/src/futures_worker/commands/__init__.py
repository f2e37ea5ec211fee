"""What the command `futures-worker` shows and changes, a module per kind; nothing here unpickles anything."""
