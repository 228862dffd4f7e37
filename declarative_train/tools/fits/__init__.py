"""Tool `dtrain fits`: whether a recipe or a published model fits on GPUs, how long training takes, what it costs."""
