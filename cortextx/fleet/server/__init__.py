"""The server's side of the fleet contract."""
