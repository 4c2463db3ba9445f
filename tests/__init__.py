"""Tests of all packages."""

#: Where the fresh seeds of this run begin: told to all its processes.
FIRST_SEED = "QUORATE_TESTS_FIRST_SEED"
