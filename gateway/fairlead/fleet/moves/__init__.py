"""The fleet's budget of moves. `move_rate` is the formula of its rate, which the operator uses too;
`move_bucket` is the token bucket in Redis."""
