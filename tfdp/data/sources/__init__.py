"""Where records are stored: in memory, in files, behind `parse`. Draws nothing."""
