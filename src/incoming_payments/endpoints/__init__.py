"""The endpoints turn requests into responses, without a web framework: Open Payments, ILP packets and OpenAPI."""
