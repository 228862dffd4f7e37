"""First recipe for a table and its target column, with a reason for each choice (`dtrain init --from`)."""
