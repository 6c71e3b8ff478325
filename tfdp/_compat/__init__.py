"""What tfdp uses of other packages beyond their public interfaces, one file for each, with tests."""
