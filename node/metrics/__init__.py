"""What a node measures, for Prometheus: names of our own, and RabbitMQ's.

`metrics.py` is what a node makes of it, `client_counters.py` what hot paths count. Other modules
have one function `collect(sources, scrape)` that yields the families it knows for one scrape;
`endpoints.py` lists which of them make up which endpoint. Nothing is imported here: hot paths need
the counters alone.
"""
