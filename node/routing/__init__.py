"""Which queues a message goes to: exchanges, bindings and the key decide, nothing is sent here."""

from node.routing.router import Route, Router, RoutingCatalog

__all__ = ["Route", "Router", "RoutingCatalog"]
