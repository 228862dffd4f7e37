"""torch modules of other libraries' models."""
