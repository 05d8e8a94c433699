"""The program `incoming-payments`: `init`, `serve`, `sign` and `demo`."""
