"""The custom resources. Pure.

`gateway_spec` (with `pod_spec`, `network_spec` and `field_types`) and `gateway_status` make up LinkGateway, and
`link_operation` is LinkOperation. `validation` checks a spec, `policy` what its author may ask for, and `conditions`
collects conditions.
"""
