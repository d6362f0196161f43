# Results for readers: blocks of text for the terminal, and the page.
from . import terminal as terminal
from .page import write_report as write_report
