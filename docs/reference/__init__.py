"""The generators of the reference pages. `docs/generate.py` runs them."""
