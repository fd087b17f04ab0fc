"""Metrics out: the catalogue of names, and collectors that read one snapshot."""
