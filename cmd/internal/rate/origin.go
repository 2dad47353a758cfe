package rate

import "net/netip"

// Origin is where an address is counted: an IPv4 address on its own; one of IPv6 as its /64 network, all of which a host typically owns.
func Origin(address netip.Addr) netip.Addr {
	address = address.Unmap().WithZone("")
	if address.Is6() {
		if network, err := address.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return address
}
