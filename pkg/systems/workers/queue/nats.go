package queue

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// natsTimeout bounds each exchange with NATS servers.
const natsTimeout = 5 * time.Second

// maxContext bounds the file with the addresses and credentials of NATS servers, in bytes.
const maxContext = 64 << 10

// subscriptionLength bounds the messages of a subscription that have not been read.
const subscriptionLength = 1024

// natsContext is the file that `nats context save` writes: the servers and the credentials for them.
type natsContext struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password"`
	Token    string `json:"token"`
	Creds    string `json:"creds"`
	NKey     string `json:"nkey"`
	Cert     string `json:"cert"`
	Key      string `json:"key"`
	CA       string `json:"ca"`
	TLSFirst bool   `json:"tls_first"`
	Domain   string `json:"jetstream_domain"`
	Prefix   string `json:"jetstream_api_prefix"`
	Inbox    string `json:"inbox_prefix"`
	// The following fields do not concern a server.
	Description string `json:"description"`
	ColorScheme string `json:"color_scheme"`
}

// readContext returns the content of a context's file. Fields that have a value and no meaning here are errors.
func readContext(path string) (*natsContext, error) {
	text, err := bounded.Configured(path, maxContext)
	if err != nil {
		return nil, err
	}
	c, fields := &natsContext{}, map[string]any{}
	known, err := json.Marshal(c)
	if err == nil {
		err = errors.Join(json.Unmarshal(text, c), json.Unmarshal(text, &fields))
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not the JSON of a NATS context: %w", path, err)
	}
	var supported map[string]any
	if err := json.Unmarshal(known, &supported); err != nil {
		return nil, err
	}
	for name, value := range fields {
		if _, ok := supported[name]; !ok && value != "" && value != false && value != nil {
			return nil, fmt.Errorf("%s: the field %s is not supported: save the context without it", path, name)
		}
	}
	return c, nil
}

func (c *natsContext) options() (list []nats.Option, err error) {
	add := func(set bool, o func() nats.Option) {
		if set {
			list = append(list, o())
		}
	}
	add(c.User != "", func() nats.Option { return nats.UserInfo(c.User, c.Password) })
	add(c.Token != "", func() nats.Option { return nats.Token(c.Token) })
	add(c.Creds != "", func() nats.Option { return nats.UserCredentials(c.Creds) })
	add(c.Cert != "" || c.Key != "", func() nats.Option { return nats.ClientCert(c.Cert, c.Key) })
	add(c.CA != "", func() nats.Option { return nats.RootCAs(c.CA) })
	add(c.TLSFirst, func() nats.Option { return nats.TLSHandshakeFirst() })
	add(c.Inbox != "", func() nats.Option { return nats.CustomInboxPrefix(c.Inbox) })
	if c.NKey != "" {
		key, err := nats.NkeyOptionFromSeed(c.NKey)
		if err != nil {
			return nil, err
		}
		list = append(list, key)
	}
	return list, nil
}

// NATS is a connection to a user's NATS servers, which the first stream opens.
type NATS struct {
	// Context is the path of a file of `nats context save`; empty means that no servers are configured.
	Context string
	// Name identifies this process to the servers.
	Name string

	// limit is the size of the largest message that the servers take; 0 means that it is not known.
	limit atomic.Int64

	mu     sync.Mutex // held while connecting
	conn   *nats.Conn
	js     jetstream.JetStream
	failed error // of the last attempt to connect, at tried
	tried  time.Time

	list     sync.Mutex
	watchers []*func(error)
}

var errNoContext = errors.New("this server has no option nats-context, which names the NATS servers")

// Connect returns the connection. The client library connects again after an interruption, and closes the connection
// when the servers have refused the credentials; the next call reads them again. Callers that come shortly after a
// failed attempt share its error.
func (n *NATS) Connect() (*nats.Conn, jetstream.JetStream, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conn != nil && !n.conn.IsClosed() {
		return n.conn, n.js, nil
	}
	if n.failed != nil && time.Since(n.tried) < rewrite/2 {
		return nil, nil, n.failed
	}
	conn, js, err := n.dial()
	n.failed, n.tried = err, time.Now()
	if err == nil {
		n.conn, n.js = conn, js
		n.limit.Store(max(1, conn.MaxPayload()-headerRoom))
	}
	return conn, js, err
}

func (n *NATS) dial() (*nats.Conn, jetstream.JetStream, error) {
	if n.Context == "" {
		return nil, nil, errNoContext
	}
	c, err := readContext(n.Context)
	if err != nil {
		return nil, nil, err
	}
	options, err := c.options()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", n.Context, err)
	}
	options = append(options, nats.Name(n.Name), nats.Timeout(natsTimeout), nats.MaxReconnects(-1),
		nats.ReconnectWait(rewrite), nats.ReconnectBufSize(-1), // an old message must not arrive after a newer one
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { n.tell(cmp.Or(err, nats.ErrDisconnected)) }),
		nats.ReconnectHandler(func(*nats.Conn) { n.tell(nil) }),
		nats.ClosedHandler(func(c *nats.Conn) { n.tell(cmp.Or(c.LastError(), nats.ErrConnectionClosed)) }),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // requests return their errors
		nats.PermissionErrOnSubscribe(true),                               // and so do subscriptions
		nats.SyncQueueLen(subscriptionLength),
	)
	conn, err := nats.Connect(cmp.Or(c.URL, nats.DefaultURL), options...)
	if err != nil {
		return nil, nil, fmt.Errorf("no connection to the NATS servers in %s: %w", n.Context, err)
	}
	opts := []jetstream.JetStreamOpt{jetstream.WithDefaultTimeout(natsTimeout)}
	var js jetstream.JetStream
	switch {
	case c.Domain != "":
		js, err = jetstream.NewWithDomain(conn, c.Domain, opts...)
	case c.Prefix != "":
		js, err = jetstream.NewWithAPIPrefix(conn, c.Prefix, opts...)
	default:
		js, err = jetstream.New(conn, opts...)
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, js, nil
}

// tell calls the watchers, after the connection was lost or is back.
func (n *NATS) tell(err error) {
	n.list.Lock()
	list := slices.Clone(n.watchers)
	n.list.Unlock()
	for _, changed := range list {
		(*changed)(err)
	}
}

// Watch calls a function, which must not block, with an error when the connection is lost and with nil when it is back,
// until stop is called.
func (n *NATS) Watch(changed func(error)) (stop func()) {
	n.list.Lock()
	defer n.list.Unlock()
	n.watchers = append(n.watchers, &changed)
	return func() {
		n.list.Lock()
		defer n.list.Unlock()
		n.watchers = slices.DeleteFunc(n.watchers, func(o *func(error)) bool { return o == &changed })
	}
}

// Close closes the connection.
func (n *NATS) Close() {
	n.mu.Lock()
	conn := n.conn
	n.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}
