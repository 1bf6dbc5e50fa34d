"""Vision Transformers and images on the same schemes, and schemes compared on them."""
