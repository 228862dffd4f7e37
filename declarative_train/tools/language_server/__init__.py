"""Language server for recipes: mistakes, fixes, hovers, completions. Needs pygls."""
