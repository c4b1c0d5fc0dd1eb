"""The channel plane: platform adapters and their host, over `cortexfs.channel.socket/v1`."""
