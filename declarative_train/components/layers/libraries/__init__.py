"""Models of other libraries as nodes: what they are made from, how they start, what their files hold."""
