// Package announce attracts traffic for additional IPv4 addresses to this machine: it answers ARP requests (RFC 826)
// on the link and announces addresses that it takes over (RFC 5227, section 3).
//
// Its invariant: the kernel keeps no state. When the process is killed, its addresses can move to another machine.
// Without addresses there is neither a socket nor a goroutine.
package announce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// interval is the time between the two announcements of an address (ANNOUNCE_INTERVAL in RFC 5227).
const interval = 2 * time.Second

// Announcer answers ARP for addresses on the link that has one of the machine's addresses. It is safe for concurrent
// use.
type Announcer struct {
	own netip.Addr
	log *slog.Logger

	mu     sync.Mutex
	held   map[netip.Addr]bool
	socket *socket // nil while there are no addresses
	again  *time.Timer
}

// New returns an Announcer for the link that has the address own.
func New(own netip.Addr, log *slog.Logger) *Announcer {
	return &Announcer{own: own, log: log, held: map[netip.Addr]bool{}}
}

// Set replaces the addresses. It announces the new ones or, with refresh, all of them. After an error it answers for
// no address; call Set again.
func (a *Announcer) Set(addresses []netip.Addr, refresh bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := make(map[netip.Addr]bool, len(addresses))
	var fresh []netip.Addr
	for _, ip := range addresses {
		if ip.Is4() {
			now[ip] = true
			if refresh || !a.held[ip] {
				fresh = append(fresh, ip)
			}
		}
	}
	a.held = now
	if len(now) == 0 {
		return a.stop()
	}
	if a.socket != nil && a.socket.ended() {
		_ = a.stop()
		fresh = addresses
	}
	if a.socket == nil {
		s, err := open(a.own)
		if err != nil {
			a.held = map[netip.Addr]bool{}
			return fmt.Errorf("answer ARP on the link of %s: %w", a.own, err)
		}
		a.socket = s
		go s.serve(a.has, a.log)
	}
	if len(fresh) == 0 {
		return nil
	}
	a.announce(fresh)
	if a.again != nil {
		a.again.Stop()
		fresh = addresses // including the addresses of the stopped timer
	}
	a.again = time.AfterFunc(interval, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.again = nil
		if a.socket != nil {
			a.announce(fresh)
		}
	})
	return nil
}

// Close stops answering and closes the socket.
func (a *Announcer) Close() error { return a.Set(nil, false) }

func (a *Announcer) has(ip netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[ip]
}

// stop closes the socket and waits for serve to end. The caller must hold a.mu. stop releases it while it waits,
// because serve takes it for each request.
func (a *Announcer) stop() error {
	if a.again != nil {
		a.again.Stop()
		a.again = nil
	}
	s := a.socket
	if s == nil {
		return nil
	}
	a.socket = nil
	err := s.file.Close()
	a.mu.Unlock()
	<-s.done
	a.mu.Lock()
	return err
}

func (a *Announcer) announce(addresses []netip.Addr) {
	for _, ip := range addresses {
		if !a.held[ip] {
			continue
		}
		for _, operation := range []uint16{request, reply} { // some machines accept only one of the two
			if err := a.socket.send(packet(operation, a.socket.mac, ip, broadcast, ip), broadcast); err != nil {
				a.log.Warn("could not announce address", "address", ip, "error", err)
			}
		}
	}
}

// An ARP packet for IPv4 over Ethernet: hardware type, protocol type, length of each address, operation, sender's
// MAC and IP address, target's MAC and IP address.
const (
	size    = 28
	request = 1
	reply   = 2
)

var (
	header    = []byte{0, 1, 8, 0, 6, 4}
	broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
)

func packet(operation uint16, from net.HardwareAddr, sender netip.Addr, to net.HardwareAddr, target netip.Addr) []byte {
	p := binary.BigEndian.AppendUint16(append(make([]byte, 0, size), header...), operation)
	p = append(append(p, from[:6]...), sender.AsSlice()...)
	return append(append(p, to[:6]...), target.AsSlice()...)
}

// asked returns the address for which an ARP request asks, and the sender's MAC and IP address.
func asked(p []byte) (ip netip.Addr, by net.HardwareAddr, sender netip.Addr, ok bool) {
	if len(p) < size || [6]byte(p) != [6]byte(header) || binary.BigEndian.Uint16(p[6:]) != request {
		return ip, nil, sender, false
	}
	return netip.AddrFrom4([4]byte(p[24:])), net.HardwareAddr(p[8:14]), netip.AddrFrom4([4]byte(p[14:])), true
}

type socket struct {
	file *os.File
	raw  interface {
		Read(func(uintptr) bool) error
		Write(func(uintptr) bool) error
	}
	link int
	mac  net.HardwareAddr
	done chan struct{}
}

// open opens a socket that receives the ARP requests of the link that has the address own.
func open(own netip.Addr) (*socket, error) {
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	link := 0
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok && ip == own {
			link = a.LinkIndex
		}
	}
	if link == 0 {
		return nil, errors.New("no link has this address")
	}
	on, err := netlink.LinkByIndex(link)
	if err != nil {
		return nil, err
	}
	mac := on.Attrs().HardwareAddr
	if len(mac) != 6 {
		return nil, fmt.Errorf("link %s is not an Ethernet", on.Attrs().Name)
	}
	// Protocol 0 receives nothing until Bind, so that no packet bypasses the filter.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	// Accept only requests: the 16-bit word at offset 6 is the operation.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 6},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: request},
		{Code: unix.BPF_RET | unix.BPF_K, K: size},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{
			Len: uint16(len(filter)), Filter: &filter[0],
		}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link}))
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "arp")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &socket{file: file, raw: raw, link: link, mac: mac, done: make(chan struct{})}, nil
}

// protocol is ETH_P_ARP in network byte order.
const protocol = unix.ETH_P_ARP>>8 | unix.ETH_P_ARP&0xff<<8

func (s *socket) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

func (s *socket) serve(has func(netip.Addr) bool, log *slog.Logger) {
	defer close(s.done)
	var b [size]byte
	for {
		n, outgoing, err := s.receive(b[:])
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case errors.Is(err, unix.ENETDOWN): // the kernel reports this once; the socket works again when the link is up
			continue
		case err != nil:
			log.Error("could not receive ARP requests", "error", err)
			return
		case outgoing:
			continue
		}
		ip, by, sender, ok := asked(b[:n])
		if !ok || !has(ip) {
			continue
		}
		if err := s.send(packet(reply, s.mac, ip, by, sender), by); err != nil && !errors.Is(err, os.ErrClosed) {
			log.Warn("could not answer ARP request", "address", ip, "error", err)
		}
	}
}

func (s *socket) receive(b []byte) (n int, outgoing bool, err error) {
	closed := s.raw.Read(func(fd uintptr) bool {
		var from unix.Sockaddr
		n, from, err = unix.Recvfrom(int(fd), b, 0)
		if l, ok := from.(*unix.SockaddrLinklayer); ok {
			outgoing = l.Pkttype == unix.PACKET_OUTGOING
		}
		return !errors.Is(err, unix.EAGAIN)
	})
	if closed != nil {
		err = os.ErrClosed
	}
	return n, outgoing, err
}

func (s *socket) send(p []byte, to net.HardwareAddr) error {
	address := &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: s.link, Halen: 6}
	copy(address.Addr[:], to)
	var err error
	closed := s.raw.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), p, 0, address)
		return !errors.Is(err, unix.EAGAIN)
	})
	if closed != nil {
		return os.ErrClosed
	}
	return err
}
