"""What samplers share: persons, periods, random numbers, batches of chosen rows."""
