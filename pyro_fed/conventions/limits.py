"""When an answer is wrong: the same two numbers for every check, criterion and comparison."""

#: A mean that is off by more than this many of the posterior's SDs matters, and an SD by more than this factor.
MATTERS, SD_MATTERS = 0.25, 1.25
