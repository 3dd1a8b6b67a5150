"""Knows things about hosts, and about what broken runs print. Pure, standard library only; touches nothing."""
