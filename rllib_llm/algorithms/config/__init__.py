"""The fluent settings of an algorithm, one file per method.

Importing this loads neither torch nor ray: recipes read the schema from here.
"""
