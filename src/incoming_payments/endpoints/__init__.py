"""What the service says over HTTP, without a web framework: Open Payments, ILP packets, and the OpenAPI document."""
