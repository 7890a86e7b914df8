-- Says whether a delivery is not over. ARGV: now, place, receipt
return delivered({ARGV[2]}, {ARGV[3]})[1] and 1 or 0
