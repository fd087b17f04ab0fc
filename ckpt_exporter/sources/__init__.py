"""Facts in: one module per kind of fact."""
