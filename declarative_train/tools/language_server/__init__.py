"""Language server for recipes: mistakes, fixes, hovers, completions. It needs pygls."""
