"""What data and weights carry: how they were drawn, what they were made with, what is padding."""
