"""Adapters from a web stack to the service: each translates a request, drives the flow and sends the response.

`wsgi` and `asgi` speak the standard interfaces and import no framework. `aiohttp`, `django` and `fastapi` return routes
for the framework of their name. The program `incoming-payments` is in `server`.
"""
