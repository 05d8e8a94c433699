"""The clients that reach other systems over HTTP. They need the extra `outbound`."""
