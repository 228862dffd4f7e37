"""Many runs: how each of them ended, what tells them apart, and searches over settings."""
