"""Short convolutions as matrices with few multiplications; numpy alone."""
