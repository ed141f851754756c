"""One module a command; builds the objects and calls a room. May import all."""
