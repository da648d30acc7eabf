"""The nouns and rules of the platform. Pure: no input or output, nothing of ours is imported here."""
