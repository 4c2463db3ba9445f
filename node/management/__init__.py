"""The management API under /api, with the routes, words and status codes of RabbitMQ's."""

from node.management.app import ManagementRoutes
from node.management.services import Listing, ManagementServices

__all__ = ["Listing", "ManagementRoutes", "ManagementServices"]
