"""The side of a frontend: a client for sessions, in both versions of the ABI."""
