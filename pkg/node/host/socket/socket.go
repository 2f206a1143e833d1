// Package socket makes private Unix sockets, and finds out which ports the machine's processes use. Rules that redirect
// a port apply before packets reach a socket, so that they would silently take a port from the process that has it.
package socket

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// InUse reports whether a process has a socket for packets to an IPv4 address and port in this network namespace; an
// unspecified address stands for all. The protocol is an IP protocol number. It returns false unless that is TCP or
// UDP.
//
// For TCP, connections that a process has begun count too, if their local port is the same. Ask again later.
func InUse(protocol uint8, at netip.AddrPort) bool {
	kind := unix.SOCK_STREAM
	switch protocol {
	case unix.IPPROTO_TCP:
	case unix.IPPROTO_UDP:
		kind = unix.SOCK_DGRAM
	default:
		return false
	}
	if !at.Addr().Is4() {
		return false
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	if protocol == unix.IPPROTO_TCP { // connections that the previous listener accepted do not count
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
	return errors.Is(err, unix.EADDRINUSE)
}
