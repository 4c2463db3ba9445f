"""What the nodes did: when they ran, what their clocks showed, who led."""
