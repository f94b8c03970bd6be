"""Language models as RLlib RLModules: loading, heads, adapters, the tiny model."""
