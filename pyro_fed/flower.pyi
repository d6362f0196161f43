# The names of the room, under the path by which apps import them.
from .deployment.flower import *
