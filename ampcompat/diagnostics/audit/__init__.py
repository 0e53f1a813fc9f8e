"""``audit``: what a script's precision does to its training, seen while it runs as it is."""
