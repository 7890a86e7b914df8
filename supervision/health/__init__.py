"""The health of a tree, and the HTTP server that answers probes with it."""
