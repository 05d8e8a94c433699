"""Be paid over Open Payments."""
