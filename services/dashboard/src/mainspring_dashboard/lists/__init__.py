"""Lists that are sorted, counted or gathered over a whole cluster: futures, actors, datasets, sessions."""
