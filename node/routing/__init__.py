"""Which queues a message goes to: exchanges, bindings and the key decide, nothing is sent here."""

from node.routing.router import Catalog, Route, Router

__all__ = ["Catalog", "Route", "Router"]
