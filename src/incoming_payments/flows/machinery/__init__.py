"""The two drivers, which run flows, the effects of flows, and the ports that answer the effects."""
