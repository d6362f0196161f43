from . import optim as optim
from .fedavg import FedAvg as FedAvg
