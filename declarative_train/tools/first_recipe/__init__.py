"""A table and the name of its target -> a first recipe, with a reason beside each choice (`dtrain init --from`)."""
