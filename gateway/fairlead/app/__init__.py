"""The HTTP side of a node: the link endpoint for agents (`link_endpoint`), the platform API (`api`, `routes`), who may
use a port (`access`), and the admin port (`admin`).
"""
