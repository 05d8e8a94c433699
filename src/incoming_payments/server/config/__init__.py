"""The configuration of `serve`: its tables and settings, and the file that they are read from."""
