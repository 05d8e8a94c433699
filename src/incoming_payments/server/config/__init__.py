"""The configuration of `serve`: its tables and settings, and the file that contains them."""
