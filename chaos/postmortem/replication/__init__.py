"""What the nodes' logs say of each entry: where it is, since when, and what is wrong with it."""
