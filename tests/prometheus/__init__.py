"""Rules, alerts, dashboards and counters against a real Prometheus."""
