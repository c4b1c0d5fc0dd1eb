"""The composition root: configuration, twistd plugins and the command line."""
