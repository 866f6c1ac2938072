"""The library of methods: what each takes, returns and does, for whoever calls one."""
