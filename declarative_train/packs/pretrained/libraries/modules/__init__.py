"""torch modules of nodes that are models of other libraries."""
