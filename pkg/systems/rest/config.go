package rest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/systems/rest/identity"
)

// User is the name under which the facade reads and writes. The ClusterRole of the same name has its rights.
const User = identity.User

const (
	// maxBody bounds a request body, in bytes.
	maxBody = 1 << 20
	// maxHeader bounds a request's headers, in bytes.
	maxHeader = 32 << 10
	// maxConnections bounds the open connections, maxConnectionsEach the connections from one client address.
	maxConnections, maxConnectionsEach = 1024, 256
	// maxBodies bounds the request bodies that are read concurrently, maxReads the logs in memory. Further requests
	// wait.
	maxBodies, maxReads = 64, 8
	// logTimeout bounds reading a log without follow.
	logTimeout = 20 * time.Second
	// maxStreams bounds the open log streams.
	maxStreams = 256
	// requestTimeout bounds a request other than a log stream.
	requestTimeout = 60 * time.Second
	// bodyTimeout bounds the arrival of a request body.
	bodyTimeout = 20 * time.Second
	// writeStall is how long a client may not read from its log stream.
	writeStall = 30 * time.Second
	// maxPage is the maximum of a list's parameter limit.
	maxPage = 5000
)

// NodeClient connects to the agents of nodes.
type NodeClient interface {
	// Connect returns the base URL of the node's API and a transport that authenticates to it.
	Connect(ctx context.Context, node string) (*url.URL, http.RoundTripper, error)
}

// Resource is a part of the API that adds its own routes.
type Resource interface{ Routes() []Route }

// Config configures a Server.
type Config struct {
	// REST has the options. Its address is where Run listens, unless Listener is set.
	config.REST
	Listener net.Listener
	// TLS is required unless Insecure is set.
	TLS *tls.Config

	// Client is the in-process client of User.
	Client client.Interface
	// Namespace is the namespace of tasks, and of pods and services whose request names none. Empty means default.
	Namespace string
	// Nodes reads logs from the nodes' agents.
	Nodes NodeClient
	// Resources add routes of other systems.
	Resources []Resource
	Logger    *slog.Logger
}

// Validate returns an error for settings that are missing or contradict each other.
func (c *Config) Validate() error {
	if c.Client == nil || c.Nodes == nil || c.Logger == nil {
		return errors.New("rest: Client, Nodes and Logger are required")
	}
	if c.RESTAddress == "" {
		return errors.New("rest: an address is required")
	}
	if err := c.REST.Validate(); err != nil {
		return fmt.Errorf("rest: %w", err)
	}
	if !c.RESTInsecure && c.TLS == nil {
		return errors.New("rest: TLS is required")
	}
	return nil
}
