"""Dashboards, rules, units, images and manifests against the real programs that read them."""
