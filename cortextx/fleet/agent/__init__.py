"""The host agent's side of the fleet contract."""
