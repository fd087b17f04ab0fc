"""Pages for people: self-contained HTML without outside assets, whole also without script."""
