"""From files to the table `records`: what there is, what of it is wanted, and what it says."""
