"""The edge of the REST API: each module translates and authorises one resource."""
