# The benchmark: what is run, what comes of it, the page, and what adapters get.
from .bench import Results as Results
from .bench import run_benchmark as run_benchmark
from .cell import Outcome as Outcome
from .clients import Clients as Clients
from .page import write_page as write_page
