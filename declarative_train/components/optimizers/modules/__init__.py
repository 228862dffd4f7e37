"""Optimizer classes that torch does not have. They import torch, so only the method `build()` of a component imports
them."""
