"""Adapters between web frameworks and the service.

An adapter translates a request, calls the service and sends the response.

`wsgi` and `asgi` implement the standard interfaces and import no framework. `aiohttp`, `django` and `fastapi` return
routes for these frameworks. The program `incoming-payments` is in `server`.
"""
