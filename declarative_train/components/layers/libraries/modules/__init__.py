"""Their torch modules."""
