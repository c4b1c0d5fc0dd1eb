"""The Interaction ABI: what session masters and session slaves say to each other."""
