"""Programs that accept the product as its users have it, from the outside: real processes, real
clients, real tools.
"""
