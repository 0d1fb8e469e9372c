"""What a frozen sum is worth: values of paths, totals, remainders, rankings, rounding bounds."""
