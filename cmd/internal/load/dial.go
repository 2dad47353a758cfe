package load

import (
	"context"
	"net"
	"runtime"
)

// perAddress is the number of clients that share a source address, fewer than there are ports for outgoing connections.
const perAddress = 20_000

// Dial connects client i. On a loopback interface clients are spread over its addresses; only Linux has more than one by default.
func Dial(ctx context.Context, address string, i int) (net.Conn, error) {
	dialer := net.Dialer{KeepAlive: -1}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); i >= perAddress && ip != nil && ip.IsLoopback() && runtime.GOOS == "linux" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i/perAddress))}
	}
	return dialer.DialContext(ctx, "tcp", address)
}
