"""The modules of adapters: they import torch."""
