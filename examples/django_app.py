"""The incoming payment service inside a Django project, under WSGI.

pip install . django waitress
incoming-payments init my-bank --port 8000
FOLDER=my-bank PYTHONPATH=examples waitress-serve --listen 127.0.0.1:8000 django_app:application
python examples/client.py my-bank          # in a second terminal
"""

from django.conf import settings
from django.core.wsgi import get_wsgi_application

from bank import service
from incoming_payments.hosts.django import routes
from incoming_payments.hosts.wsgi import WsgiApplication

settings.configure(
    SECRET_KEY="of your project",
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"],
)

urlpatterns = routes(WsgiApplication(service()))
application = get_wsgi_application()
