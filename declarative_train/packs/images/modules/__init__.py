"""Loss terms of images as `nn.Module`s. Only the body of a `build()` imports these modules, because they import
torch."""
