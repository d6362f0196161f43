"""Simulation-based calibration: is the truth where a posterior says, over data simulated from the prior?"""
