"""What carries out the worker's decisions: one loop, children, inputs, the database's side of turns. Above `deciding`."""
