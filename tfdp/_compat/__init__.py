"""What tfdp uses of other packages beyond their public interfaces, in one place, with tests."""
