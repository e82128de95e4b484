"""The parts of `runway demo`: the repository and its remote, the story, what the reader sees."""
