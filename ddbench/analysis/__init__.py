"""From a run folder to numbers: frames, settings, metrics, statistics, identities. No torch here."""
