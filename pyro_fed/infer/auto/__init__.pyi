from .auto import Auto as Auto
