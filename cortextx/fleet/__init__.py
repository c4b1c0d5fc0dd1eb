"""The fleet plane: Agent to Server Protocol V1, both sides."""
