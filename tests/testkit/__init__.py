"""What tests of several packages are built from: clocks, virtual time, waiting, processes."""
