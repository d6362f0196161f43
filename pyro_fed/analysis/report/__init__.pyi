# Results for readers: blocks of text for the terminal, and the page.
from . import overview as overview
from . import page as page
