"""What is stored: keys, values, ids, states, and what one transaction reads and is about to write. The ground of the package."""
