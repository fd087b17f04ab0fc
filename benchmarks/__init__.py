"""Paired measurements of the exporter, each against something a user would pick instead."""
