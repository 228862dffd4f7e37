"""torch modules of adapters."""
