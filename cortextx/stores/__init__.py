"""Durable and in-memory stores behind the interfaces."""
