"""`python -m cortextx.app.cli`: the same as `cortextx`."""

from __future__ import annotations

from cortextx.app.cli.main import main

if __name__ == "__main__":
    main()
