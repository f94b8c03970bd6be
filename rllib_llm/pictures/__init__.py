"""Pictures in turns: contract, places among tokens, features, rows."""
