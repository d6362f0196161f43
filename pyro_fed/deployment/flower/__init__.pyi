from .apps import simulated_rows as simulated_rows
from .client import client_app as client_app
from .executor import Flower as Flower
from .secure import SecAgg as SecAgg
from .server import server_app as server_app
