"""The flags of a command line: how they are parsed, explained, and declared in the files of methods."""
