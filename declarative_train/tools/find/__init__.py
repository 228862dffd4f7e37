"""Search for a word in everything that a user can write or read."""
