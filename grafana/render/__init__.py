"""Pictures of the dashboards, drawn with Grafana's own panel components."""
