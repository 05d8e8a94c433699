"""The program `incoming-payments`, with the commands `init`, `serve`, `backup`, `sign` and `demo`."""
