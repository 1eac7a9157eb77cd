"""What commands show while they work and when they are done."""
