"""The two drivers run a flow. This package has the drivers, the effects, and the ports that answer the effects."""
