"""What is gathered once a check has failed, by at most a few more runs; it decides nothing."""
