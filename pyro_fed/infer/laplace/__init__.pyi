from .fedlaplace import FedLaplace as FedLaplace
