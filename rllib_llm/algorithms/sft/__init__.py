"""Supervised fine-tuning: masked negative log-likelihood on demonstrated turns."""
