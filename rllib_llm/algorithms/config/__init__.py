"""Fluent settings of algorithms, one file per method.

This package imports neither torch nor ray: recipes read the schema from here.
"""
