"""One run on several ranks: copies or shards, what ranks tell each other, and how they end together."""
