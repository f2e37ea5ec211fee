"""What runs in the processes of tasks: their loop, what a task knows and may change, the template that forks them."""
