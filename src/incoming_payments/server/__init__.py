"""The program `incoming-payments`: `init`, `serve`, `backup`, `sign` and `demo`."""
