"""The command line: verbs that parse, call and print; what they do is elsewhere."""
