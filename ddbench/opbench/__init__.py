"""The benchmark of single ops: every op x product shape x implementation, checked, timed, set against its floor."""
