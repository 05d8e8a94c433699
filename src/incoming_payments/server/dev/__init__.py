"""Commands for developers: a demo of a whole payment, and signed requests."""
