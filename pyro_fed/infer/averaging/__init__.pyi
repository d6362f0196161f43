from .fedavg import FedAvg as FedAvg
