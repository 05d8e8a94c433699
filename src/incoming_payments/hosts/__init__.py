"""The edges: what turns a web stack's request into ours, drives the flow, and writes the response back.

`wsgi` and `asgi` speak the standard interfaces and import no framework; `settings`, `command` and `demo` are the
`incoming-payments` command.
"""
