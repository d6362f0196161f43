from . import optim as optim
from .fedavg import FedAvg as FedAvg
from .fedprox import FedDyn as FedDyn
from .fedprox import FedProx as FedProx
