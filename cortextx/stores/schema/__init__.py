"""SQL texts of the stores' schemas, one file a version."""
