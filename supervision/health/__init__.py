"""What is known of a tree's health, and the HTTP server that answers probes with it."""
