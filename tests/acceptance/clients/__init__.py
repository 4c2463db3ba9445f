"""Real clients, unchanged, against a broker: `python -m tests.acceptance.clients`."""
