from .sfvi import SFVI as SFVI
