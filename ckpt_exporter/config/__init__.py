"""The configuration file: one schema for validation, sample file and docs, and its loading."""
