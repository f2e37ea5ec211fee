"""What whoever memoizes a function may say beside the rule by which its calls are known, and how else it may be called."""
