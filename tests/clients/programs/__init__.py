"""One program per Python client; tests/clients/programs/program.py says how they talk."""
