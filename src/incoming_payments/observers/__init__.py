"""Observers: adapters from `ports.Observer` to metrics, each an extra of this distribution."""
