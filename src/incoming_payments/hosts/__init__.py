"""The edges: what turns a web stack's request into ours, drives the flow, and writes the response back.

`wsgi` and `asgi` speak the standard interfaces and import no framework; `command` is `incoming-payments`, with
`settings`, `demo`, and `sign_command`, which prints what `curl` says.
"""
