"""Where records lie: in memory, in files, behind `parse`; nothing here draws."""
