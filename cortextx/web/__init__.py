"""The one web site that the server mounts."""
