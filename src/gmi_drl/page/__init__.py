"""Shows runs in a browser while they go on, and after: a page that reads their folders."""
