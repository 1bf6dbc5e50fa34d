"""Text to token shards: documents from files or the Hub, tokenizers, shards, and the windows that training visits."""
