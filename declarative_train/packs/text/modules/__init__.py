"""Layers of the pack as `nn.Module`s. They import torch at the top: only a `build()` body imports them."""
