"""What every other part rests on: settings, flags, units, retries, log, programs."""
