"""Loss terms of images as `nn.Module`s. These modules import torch, so import them only inside a method `build()`."""
