"""What a process tells about itself: logs, metrics, traces, and what it must never tell."""
