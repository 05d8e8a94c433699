"""Adapters that turn observations into metrics. Each adapter needs an extra of this distribution."""
