"""The incoming payment service inside a Flask application.

pip install . flask
incoming-payments init my-bank --port 5000
FOLDER=my-bank flask --app examples/flask_app run --port 5000
python examples/client.py my-bank          # in a second terminal
"""

import flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from bank import service
from incoming_payments.hosts.wsgi import WsgiApplication

payments = WsgiApplication(service())

app = flask.Flask(__name__)
app.wsgi_app = DispatcherMiddleware(  # type: ignore[method-assign] # as Flask documents it
    app.wsgi_app, dict.fromkeys(payments.paths, payments)
)
