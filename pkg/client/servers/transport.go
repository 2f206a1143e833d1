package servers

import (
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// tries is the maximum number of servers that one request is sent to.
const tries = 8

// RoundTrip sends a request to the current server and ignores the request's host. transport must dial with
// DialContext. After a failure it retries on other servers: always if the request reached no server, otherwise only a
// read. A request whose body cannot be rewound is sent once.
func (l *List) RoundTrip(transport http.RoundTripper, r *http.Request) (*http.Response, error) {
	left := min(len(l.Addresses()), tries)
	for {
		address := l.Current()
		var sent atomic.Bool
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
		})
		out := r.Clone(ctx)
		out.URL.Host, out.Host = address, address
		answer, err := transport.RoundTrip(out)
		if err == nil {
			l.works(address)
			return answer, nil
		}
		if r.Context().Err() != nil {
			return nil, err
		}
		l.failed(address, err)
		left--
		if left <= 0 || sent.Load() && r.Method != http.MethodGet && r.Method != http.MethodHead {
			return nil, err
		}
		if r.Body != nil && r.Body != http.NoBody {
			if r.GetBody == nil {
				return nil, err
			}
			body, bodyErr := r.GetBody()
			if bodyErr != nil {
				return nil, err
			}
			r = r.Clone(r.Context())
			r.Body = body
		}
	}
}

// Transport returns RoundTrip as an http.RoundTripper.
func (l *List) Transport(transport http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) { return l.RoundTrip(transport, r) })
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// DialContext connects to a server, with a short timeout if others are available. Set closes the connection when the
// server leaves the cluster.
func (l *List) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	dialling := ctx
	if l.others(address) {
		short, cancel := context.WithTimeout(ctx, dialShort)
		defer cancel()
		dialling = short
	}
	raw, err := l.Dial(dialling, network, address)
	if err != nil {
		if ctx.Err() == nil { // even if the request no longer waits for the connection
			l.failed(address, err)
		}
		return nil, err
	}
	c := &conn{Conn: raw, list: l, address: address}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns[address] == nil {
		l.conns[address] = map[*conn]struct{}{}
	}
	l.conns[address][c] = struct{}{}
	return c, nil
}

type conn struct {
	net.Conn
	list    *List
	address string
}

func (c *conn) Close() error {
	l := c.list
	l.mu.Lock()
	delete(l.conns[c.address], c)
	if len(l.conns[c.address]) == 0 {
		delete(l.conns, c.address)
	}
	l.mu.Unlock()
	return c.Conn.Close()
}
