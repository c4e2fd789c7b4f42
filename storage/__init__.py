"""Object storage: the records of a run in a bucket, and the lease that keeps out other writers."""
