"""A web page that shows what a Mainspring cluster is doing, live; it reads metadata only and never unpickles anything."""

from mainspring_dashboard.app import create_app
from mainspring_dashboard.reading import Cluster

__all__ = ["Cluster", "create_app"]
