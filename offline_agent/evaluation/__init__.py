"""How good a policy is: attempts at held-out tasks, what they say, and how sure that is. Knows no tensors."""
