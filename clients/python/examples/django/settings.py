import os
from urllib.parse import unquote, urlsplit

url = urlsplit(os.environ["DATABASE_URL"])

SECRET_KEY = "of an example"
USE_TZ = True
INSTALLED_APPS = ["weir.django", "shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path[1:],
        "USER": unquote(url.username or ""),
        "PASSWORD": unquote(url.password or ""),
        "HOST": url.hostname,
        "PORT": url.port,
        "DISABLE_SERVER_SIDE_CURSORS": True,  # for PgBouncer in transaction mode
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {"default": {"BACKEND": "weir.django.WeirBackend", "QUEUES": ["default", "mail"]}}
