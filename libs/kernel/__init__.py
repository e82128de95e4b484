"""Words that every room shares: ids, epochs, refusals, clocks. Pure; imports nothing of ours."""
