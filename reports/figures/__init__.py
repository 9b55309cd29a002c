"""One file per analysis, and `heads` for what all share: a table and an Axes in, the Axes out, nothing computed."""
