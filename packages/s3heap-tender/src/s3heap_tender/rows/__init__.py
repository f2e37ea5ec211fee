"""What is stored: keys, records, items, the states of a task, and the pure rules over them. The ground of the package."""
