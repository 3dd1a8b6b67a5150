"""Samples by number. It refuses to know ranks, orders and epochs: `trainer.order` decides what is read."""
