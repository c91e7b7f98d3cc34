"""Traffic to try the scaling policies on, in virtual time."""
