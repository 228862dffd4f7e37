"""Layers of this pack as `nn.Module`s. These modules import torch, so import them only inside a method `build()`."""
