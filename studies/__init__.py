"""The study of every method on open data: its run scripts, its rows, and what writes its page, docs/results.md."""
