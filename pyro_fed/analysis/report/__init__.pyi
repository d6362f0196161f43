# Results for readers: blocks of text for the terminal, and the page.
from . import page as page
from . import terminal as terminal
