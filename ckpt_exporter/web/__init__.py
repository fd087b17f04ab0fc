"""HTTP: server, routes and the status page."""
