"""Accumulators of metrics. They import torch, so only the method `build()` of a component imports them."""
