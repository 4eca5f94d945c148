"""Where the daemon's events come from: one module a source, all that is known of it."""
