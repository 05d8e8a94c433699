"""The incoming payment service inside a Django project, under ASGI.

pip install . django uvicorn
incoming-payments init my-bank --port 8000
FOLDER=my-bank uvicorn --app-dir examples django_asgi_app:application --port 8000
python examples/client.py my-bank          # in a second terminal
"""

from django.conf import settings
from django.core.asgi import get_asgi_application

from bank import async_service
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.hosts.django import routes

settings.configure(
    SECRET_KEY="of your project",
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"],
)

service, store = async_service()
urlpatterns = routes(AsgiApplication(service))
application = get_asgi_application()
