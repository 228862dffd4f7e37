"""Server and instructions for coding agents (Model Context Protocol)."""
