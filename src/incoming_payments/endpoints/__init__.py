"""The endpoints for Open Payments, ILP packets and OpenAPI. They need no web framework."""
