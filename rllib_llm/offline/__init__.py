"""Demonstrations of scripted experts and supervised fine-tuning on them."""
