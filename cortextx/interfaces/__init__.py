"""The roles between packages, as zope interfaces, a module a plane."""
