"""Ways to break the source by hand, each of which something must catch: `make mutants`."""
