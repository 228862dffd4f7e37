"""What an editor asks of a recipe that is being written: mistakes, fixes, hovers, completions. Needs pygls."""
