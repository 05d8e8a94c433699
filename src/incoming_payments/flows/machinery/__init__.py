"""What runs a flow: the effects, the ports that answer them, and the two drivers."""
