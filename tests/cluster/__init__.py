"""A small Mainspring cluster on a FoundationDB of several servers, which are killed, stopped, cut off and filled."""
