"""CortexTX: fleet logs and durable AI-agent sessions over two open wire contracts."""
