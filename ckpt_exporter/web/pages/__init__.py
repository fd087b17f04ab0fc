"""Pages for people: self-contained HTML, no script, no outside assets."""
