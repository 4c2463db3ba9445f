"""One program per Python client; tests/acceptance/clients/programs/program.py says how they
talk.
"""
