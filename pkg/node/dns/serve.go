package dns

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/coracle-dev/coracle/pkg/base/connlimit"
)

const (
	// packetLimit is the maximum number of concurrent UDP queries per address, packetsPerClient per client. Further ones
	// are dropped. It exceeds forwardLimit and spareLimit, so that cluster names are resolved even while upstreams do not
	// respond.
	packetLimit, packetsPerClient = 2048, 1024
	// streamLimit is the maximum number of TCP connections per address, streamsPerClient per client: the 110 pods of a
	// node cannot take all. Further ones are closed at once.
	streamLimit, streamsPerClient = 2048, 16
	// querySize is the maximum size of a query over TCP, in bytes.
	querySize = 4096
	// queriesPerStream is the maximum number of queries per connection.
	queriesPerStream = 128
	// streamIdle is the timeout for reading a query from, and writing a response to, a connection.
	streamIdle = 5 * time.Second
	// udpSize is the maximum size of a UDP response in bytes; it avoids fragmentation (DNS flag day 2020). Longer
	// responses are truncated, and the client retries over TCP.
	udpSize = 1232
	// headerSize is the size of a message's header in bytes (RFC 1035, section 4.1.1).
	headerSize = 12
)

// listener serves one address, over UDP and TCP.
type listener struct {
	s       *Server
	packets net.PacketConn
	stream  net.Listener
	done    sync.WaitGroup

	closing chan struct{} // closed by close

	mu      sync.Mutex
	queries *connlimit.Share[netip.Addr] // over UDP
	streams *connlimit.Share[netip.Addr]
	closed  bool
	conns   map[net.Conn]bool
}

func (s *Server) listen(a netip.AddrPort) (*listener, error) {
	packets, err := net.ListenPacket("udp", a.String())
	if err != nil {
		return nil, err
	}
	stream, err := net.Listen("tcp", a.String())
	if err != nil {
		_ = packets.Close()
		return nil, err
	}
	return &listener{
		s:       s,
		packets: packets,
		stream:  stream,
		closing: make(chan struct{}),
		queries: connlimit.NewShare[netip.Addr](packetLimit, packetsPerClient),
		streams: connlimit.NewShare[netip.Addr](streamLimit, streamsPerClient),
		conns:   map[net.Conn]bool{},
	}, nil
}

// start serves until close. It sends an error to ended if a socket fails before.
func (l *listener) start(ended chan<- error) {
	for _, serve := range []func() error{l.servePackets, l.serveStreams} {
		l.done.Go(func() {
			if err := serve(); !l.isClosed() {
				ended <- err
			}
		})
	}
}

func (l *listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// close closes all connections and waits for queries in progress.
func (l *listener) close() {
	l.mu.Lock()
	l.closed = true
	close(l.closing)
	for c := range l.conns {
		_ = c.Close()
	}
	l.mu.Unlock()
	_ = l.packets.Close()
	_ = l.stream.Close()
	l.done.Wait()
}

// pause is how long a listener waits after a temporary error.
const pause = 10 * time.Millisecond

// passes reports whether a socket error is temporary (an ICMP error, a client that disconnected, too many open
// files). It waits for pause first, since the error may recur at once.
func (l *listener) passes(err error) bool {
	var n net.Error
	if errors.Is(err, net.ErrClosed) || !errors.As(err, &n) {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.closing:
		return false
	}
}

// servePackets reads even while it serves no more queries: otherwise the socket's buffer, which all clients share,
// would fill with the packets of one.
func (l *listener) servePackets() error {
	buffer := make([]byte, dns.MaxMsgSize)
	for {
		n, from, err := l.packets.ReadFrom(buffer)
		if err != nil {
			if l.passes(err) {
				continue
			}
			return err
		}
		client := addrOf(from)
		if !l.admitQuery(client) {
			continue
		}
		packet := append([]byte(nil), buffer[:n]...)
		l.done.Go(func() {
			defer l.dismissQuery(client)
			if answer := l.s.respond(client, packet, true); answer != nil {
				_, _ = l.packets.WriteTo(answer, from) // best effort: UDP clients retry
			}
		})
	}
}

func (l *listener) serveStreams() error {
	for {
		c, err := l.stream.Accept()
		if err != nil {
			if l.passes(err) {
				continue
			}
			return err
		}
		client := addrOf(c.RemoteAddr())
		if !l.admit(c, client) {
			_ = c.Close()
			continue
		}
		l.done.Go(func() {
			defer l.dismiss(c, client)
			for range queriesPerStream {
				if !l.exchange(c, client) {
					return
				}
			}
		})
	}
}

func (l *listener) admitQuery(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queries.Enter(client)
}

func (l *listener) dismissQuery(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queries.Leave(client)
}

func (l *listener) admit(c net.Conn, client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || !l.streams.Enter(client) {
		return false
	}
	l.conns[c] = true
	return true
}

func (l *listener) dismiss(c net.Conn, client netip.Addr) {
	_ = c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	l.streams.Leave(client)
}

// exchange serves one query of a connection. It returns false if the connection is to be closed.
func (l *listener) exchange(c net.Conn, client netip.Addr) bool {
	if c.SetReadDeadline(time.Now().Add(streamIdle)) != nil {
		return false
	}
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return false
	}
	size := binary.BigEndian.Uint16(length[:])
	if size > querySize {
		return false
	}
	packet := make([]byte, size)
	if _, err := io.ReadFull(c, packet); err != nil {
		return false
	}
	answer := l.s.respond(client, packet, false)
	if answer == nil || c.SetWriteDeadline(time.Now().Add(streamIdle)) != nil {
		return false
	}
	_, err := c.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(answer)), uint16(len(answer))),
		answer...))
	return err == nil
}

func addrOf(a net.Addr) netip.Addr {
	if a, ok := a.(interface{ AddrPort() netip.AddrPort }); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// respond returns the response to a packet, or nil if it must not be answered. After a panic the response is
// SERVFAIL.
func (s *Server) respond(client netip.Addr, packet []byte, udp bool) (out []byte) {
	if len(packet) < headerSize {
		return nil
	}
	began := time.Now()
	if s.guard.Do("packet", func() { out = s.responded(client, packet, udp) }, "client", client) != nil {
		out = short(packet, dns.RcodeServerFailure)
	}
	s.metrics.answered(began, client, packet, out, udp)
	return out
}

// short returns a response that consists of a header only.
func short(packet []byte, rcode int) []byte {
	out := make([]byte, headerSize)
	copy(out, packet[:4])
	out[2] = out[2]&0x79 | 0x80 // set QR; keep the query's opcode and RD
	out[3] = byte(rcode)
	return out
}

func (s *Server) responded(client netip.Addr, packet []byte, udp bool) []byte {
	count := func(at int) uint16 { return binary.BigEndian.Uint16(packet[at:]) }
	switch opcode := int(packet[2]) >> 3 & 0xf; {
	case packet[2]&0x80 != 0:
		return nil // a response: answering it could cause a loop between two servers
	case opcode != dns.OpcodeQuery:
		return short(packet, dns.RcodeNotImplemented)
	case count(4) != 1 || count(6) != 0 || count(8) != 0 || count(10) > 2:
		return short(packet, dns.RcodeFormatError)
	}
	request := new(dns.Msg)
	if request.Unpack(packet) != nil || len(request.Question) != 1 {
		return short(packet, dns.RcodeFormatError)
	}
	size := dns.MinMsgSize
	o := request.IsEdns0()
	if o != nil {
		size = min(max(size, int(o.UDPSize())), udpSize)
	}
	answer := new(dns.Msg)
	switch {
	case !s.allowed(client):
		answer.SetRcode(request, dns.RcodeRefused)
	case o != nil && o.Version() != 0:
		answer.SetRcode(request, dns.RcodeBadVers)
	case request.Question[0].Qclass != dns.ClassINET:
		answer.SetRcode(request, dns.RcodeRefused)
	case udp:
		answer = s.answer(client, request, packetRecords)
	default:
		answer = s.answer(client, request, maxRecords)
	}
	if o != nil && answer.IsEdns0() == nil {
		answer.SetEdns0(udpSize, o.Do())
	}
	if !udp {
		size = dns.MaxMsgSize
	}
	answer.Truncate(size)
	out, err := answer.Pack()
	if err != nil || len(out) > size {
		return short(packet, dns.RcodeServerFailure)
	}
	return out
}
