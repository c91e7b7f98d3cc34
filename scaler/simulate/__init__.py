"""Scaling policies tried on recorded and made traffic, in virtual time."""
