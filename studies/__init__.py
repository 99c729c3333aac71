"""The study of every method on open data: its run scripts, its rows, and the code for its page, docs/results.md."""
