"""The command line: `sequitur`, one file a group of commands."""
