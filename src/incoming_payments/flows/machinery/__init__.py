"""The machinery of flows: the two drivers that run them, their effects, and the ports that answer the effects."""
