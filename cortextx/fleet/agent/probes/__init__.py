"""The read-only probes that a server may ask this host to run (§4.6, F27, F44, S3)."""
